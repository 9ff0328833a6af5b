//! Azure's connection string, in the format of Azure's own tools.
//!
//! Promise: no key or secret is ever shown.

use leasehold_core::{Error, Kind, Result};
use std::collections::BTreeMap;
use std::fmt;

/// Azure's `AccountName=…;AccountKey=…`.
#[derive(Default, PartialEq, Eq)]
pub(super) struct ConnectionString {
    pub(super) account: Option<String>,
    pub(super) key: Option<String>,
    pub(super) sas: Option<String>,
    pub(super) endpoint: Option<String>,
}

impl fmt::Debug for ConnectionString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectionString({:?})", self.account)
    }
}

impl ConnectionString {
    /// Parses it. The error never shows a value.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let refuse = |what: String| {
            let message =
                format!("invalid AZURE_STORAGE_CONNECTION_STRING: {what}; copy it from the account's access keys");
            Err(Error::new(Kind::Invalid, message))
        };
        let mut fields = BTreeMap::new();
        for (at, field) in text.split(';').map(str::trim).filter(|field| !field.is_empty()).enumerate() {
            let Some((name, value)) = field.split_once('=') else {
                return refuse(format!("its field {} has no `=`", at + 1));
            };
            fields.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
        if fields.get("usedevelopmentstorage").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            let endpoint = Some("http://127.0.0.1:10000/devstoreaccount1".to_owned());
            return Ok(ConnectionString { account: Some("devstoreaccount1".into()), endpoint, ..Default::default() });
        }
        let account = fields.remove("accountname");
        let endpoint = fields.remove("blobendpoint").or_else(|| {
            let (suffix, account) = (fields.get("endpointsuffix")?, account.as_ref()?);
            let scheme = fields.get("defaultendpointsprotocol").map_or("https", String::as_str);
            // The driver knows the usual suffix.
            (suffix != "core.windows.net").then(|| format!("{scheme}://{account}.blob.{suffix}"))
        });
        if account.is_none() && endpoint.is_none() {
            return refuse("it has neither AccountName nor BlobEndpoint".into());
        }
        Ok(ConnectionString {
            account,
            key: fields.remove("accountkey"),
            sas: fields.remove("sharedaccesssignature"),
            endpoint,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_strings_are_read() {
        let parse = |text| ConnectionString::parse(text).unwrap();
        let usual =
            parse("DefaultEndpointsProtocol=https;AccountName=a;AccountKey=k==;EndpointSuffix=core.windows.net");
        assert_eq!((usual.account.as_deref(), usual.key.as_deref()), (Some("a"), Some("k==")));
        assert_eq!(usual.endpoint, None);
        assert!(!format!("{usual:?}").contains("k=="));
        let china = parse("AccountName=a;AccountKey=k;EndpointSuffix=core.chinacloudapi.cn");
        assert_eq!(china.endpoint.as_deref(), Some("https://a.blob.core.chinacloudapi.cn"));
        let sas = parse("BlobEndpoint=https://a.blob.core.windows.net;SharedAccessSignature=sv=1&sig=x=");
        assert_eq!(sas.sas.as_deref(), Some("sv=1&sig=x="));
        assert_eq!(parse("UseDevelopmentStorage=true").account.as_deref(), Some("devstoreaccount1"));
        for (text, says) in [("AccountName", "field 1 has no `=`"), ("AccountKey=secret", "neither AccountName")] {
            let error = ConnectionString::parse(text).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains("secret"), "{error}");
        }
    }
}
