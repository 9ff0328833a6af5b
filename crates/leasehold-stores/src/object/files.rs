//! AWS's shared files and Azure's connection string, as their own tools write them.
//!
//! Promise: a profile that was named and is not there is an error that says where it was looked for; no key or secret is
//! ever shown. Non-promise: profiles that get their keys by running something (roles, single sign-on) are not followed.

use super::config::Env;
use leasehold_core::{Error, Kind, Result, printable};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// What the shared files say about one profile.
#[derive(Default)]
pub(super) struct Profile {
    name: String,
    pub(super) fields: BTreeMap<String, String>,
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Profile({})", self.name)
    }
}

/// Fields of a profile whose keys come from somewhere else.
const FETCHED: &[&str] = &["credential_process", "role_arn", "sso_session", "sso_start_url", "login_session"];

impl Profile {
    /// Refuses a profile that says where to fetch keys instead of having them: nothing else would be meant.
    pub(super) fn refuse_without_keys(&self) -> Result<()> {
        let Some(field) = FETCHED.iter().find(|field| self.fields.contains_key(**field)) else { return Ok(()) };
        let name = printable(&self.name);
        let message = format!(
            "the aws profile `{name}` has `{field}` instead of keys, which is not followed; run first: eval \"$(aws \
             configure export-credentials --profile {name} --format env)\""
        );
        Err(Error::new(Kind::Unsupported, message))
    }
}

/// The profile that the environment names, or the default one; empty if there are no files.
pub(super) fn profile(env: &Env) -> Result<Profile> {
    let named = ["AWS_PROFILE", "AWS_DEFAULT_PROFILE"].iter().find_map(|name| env.get(*name)).filter(|n| !n.is_empty());
    let name = named.map_or("default", String::as_str);
    let mut profile = Profile { name: name.to_owned(), fields: BTreeMap::new() };
    let mut is_there = false;
    let mut looked = Vec::new();
    // What the credentials file says counts more, so it is read last.
    for (variable, file, section) in [
        ("AWS_CONFIG_FILE", "config", format!("profile {name}")),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", name.to_owned()),
    ] {
        let path = match (env.get(variable), env.get("HOME")) {
            (Some(path), _) if !path.is_empty() => PathBuf::from(path),
            (_, Some(home)) => PathBuf::from(home).join(".aws").join(file),
            _ => continue,
        };
        looked.push(format!("`{}`", path.display()));
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(e) => {
                let message = format!("cannot read the aws profile in `{}`", path.display());
                return Err(Error::new(Kind::Unsupported, message).with_source(e));
            }
        };
        let found = sections(&text, |title| title == section || (name == "default" && title == "default"));
        is_there |= found.is_some();
        profile.fields.extend(found.unwrap_or_default());
    }
    if named.is_some() && !is_there {
        let message = format!("the aws profile `{}` is not in {}", printable(name), looked.join(" nor in "));
        return Err(Error::new(Kind::Unsupported, message));
    }
    Ok(profile)
}

/// The fields of the sections whose title is meant; none if there is no such section.
fn sections(text: &str, is_meant: impl Fn(&str) -> bool) -> Option<BTreeMap<String, String>> {
    let (mut fields, mut inside) = (None, false);
    for line in text.lines() {
        // A line that is set in belongs to the one above: nested settings, of which none are used here.
        if line.starts_with([' ', '\t', '#', ';']) {
            continue;
        }
        if let Some(title) = line.trim().strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            inside = is_meant(&title.split_whitespace().collect::<Vec<_>>().join(" "));
            if inside {
                fields.get_or_insert_with(BTreeMap::new);
            }
        } else if let (true, Some((name, value))) = (inside, line.split_once('=')) {
            let fields = fields.get_or_insert_with(BTreeMap::new);
            fields.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    fields
}

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
            // The driver knows the usual one itself.
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

    fn env(folder: &std::path::Path, more: &[(&str, &str)]) -> Env {
        let home = ("HOME".to_owned(), folder.display().to_string());
        more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).chain([home]).collect()
    }

    #[test]
    fn a_profile_is_found_in_both_files() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(".aws")).unwrap();
        let credentials = "# keys\n[default]\naws_access_key_id = AKID\naws_secret_access_key=s3cr=t\n\n[work]\n\
                           aws_access_key_id=WORK\naws_secret_access_key=w\n";
        let config = "[default]\nregion = eu-central-1\ns3 =\n  endpoint_url = nested\n[profile work]\nregion=us-west-2\n\
                      endpoint_url = http://127.0.0.1:9\n[profile sso]\nsso_session = x\n[work]\nregion=wrong\n";
        std::fs::write(folder.path().join(".aws/credentials"), credentials).unwrap();
        std::fs::write(folder.path().join(".aws/config"), config).unwrap();
        let found = profile(&env(folder.path(), &[])).unwrap();
        assert_eq!(found.fields["aws_secret_access_key"], "s3cr=t");
        assert_eq!(found.fields["region"], "eu-central-1");
        assert!(!found.fields.contains_key("endpoint_url"));
        let found = profile(&env(folder.path(), &[("AWS_PROFILE", "work")])).unwrap();
        assert_eq!(
            (found.fields["aws_access_key_id"].as_str(), found.fields["region"].as_str()),
            ("WORK", "us-west-2")
        );
        assert!(!format!("{found:?}").contains("WORK"));
        found.refuse_without_keys().unwrap();
        let error = profile(&env(folder.path(), &[("AWS_PROFILE", "sso")])).unwrap().refuse_without_keys().unwrap_err();
        assert!(error.to_string().contains("export-credentials --profile sso"), "{error}");
        let error = profile(&env(folder.path(), &[("AWS_PROFILE", "none")])).unwrap_err().to_string();
        assert!(error.contains("`none` is not in `") && error.contains(".aws/credentials`"), "{error}");
        let elsewhere = folder.path().join("keys");
        std::fs::write(&elsewhere, "[default]\naws_access_key_id=OTHER\n").unwrap();
        let variable = ("AWS_SHARED_CREDENTIALS_FILE", elsewhere.to_str().unwrap());
        assert_eq!(profile(&env(folder.path(), &[variable])).unwrap().fields["aws_access_key_id"], "OTHER");
    }

    #[test]
    fn without_files_there_is_an_empty_profile() {
        let folder = tempfile::tempdir().unwrap();
        assert!(profile(&env(folder.path(), &[])).unwrap().fields.is_empty());
        assert!(profile(&Env::new()).unwrap().fields.is_empty());
    }

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
