//! A profile from AWS's shared files, in the format of AWS's own tools.
//!
//! Promise: if a named profile is missing, the error says where it was looked for; no key or secret is ever shown.
//! Non-promise: profiles that get their keys by running something (roles, single sign-on) are not supported.

use super::{Env, var};
use leasehold_core::{Error, Kind, Result, printable};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// Fields of a profile whose keys come from elsewhere.
const FETCHED: &[&str] = &["credential_process", "role_arn", "sso_session", "sso_start_url", "login_session"];

/// One profile from the shared files.
pub(crate) struct Profile {
    pub(super) name: String,
    /// Whether the user named it.
    pub(super) is_named: bool,
    fields: BTreeMap<String, String>,
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Profile({})", self.name)
    }
}

impl Profile {
    /// The profile of this name, or else the one that the environment names, or else the default one, which is empty if
    /// there are no files. `file` replaces `~/.aws/credentials`.
    pub(crate) fn read(env: &Env, name: Option<&str>, file: Option<&Path>) -> Result<Self> {
        let named = name.or_else(|| var(env, "AWS_PROFILE")).or_else(|| var(env, "AWS_DEFAULT_PROFILE"));
        let name = named.unwrap_or("default");
        let mut profile = Profile { name: printable(name), is_named: named.is_some(), fields: BTreeMap::new() };
        let mut is_there = false;
        let mut looked = Vec::new();
        let usual = |variable: &str, file: &str| {
            let home = || var(env, "HOME").map(|home| PathBuf::from(home).join(".aws").join(file));
            var(env, variable).map(PathBuf::from).or_else(home)
        };
        // The credentials file takes precedence, so it is read last.
        for (path, section, is_given) in [
            (usual("AWS_CONFIG_FILE", "config"), format!("profile {name}"), false),
            (
                file.map(PathBuf::from).or_else(|| usual("AWS_SHARED_CREDENTIALS_FILE", "credentials")),
                name.to_owned(),
                file.is_some(),
            ),
        ] {
            let Some(path) = path else { continue };
            let shown = printable(&path.display().to_string());
            let text = match std::fs::read_to_string(&path) {
                Ok(text) => text,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound && !is_given => String::new(),
                Err(e) => {
                    let message = format!("cannot read the AWS profile in `{shown}`; check the file");
                    return Err(Error::new(Kind::Unsupported, message).with_source(e));
                }
            };
            looked.push(format!("`{shown}`"));
            let found = sections(&text, |title| title == section || (name == "default" && title == "default"));
            is_there |= found.is_some();
            profile.fields.extend(found.unwrap_or_default());
        }
        if profile.is_named && !is_there {
            let message = format!("the AWS profile `{}` is not in {}", profile.name, looked.join(" nor in "));
            return Err(Error::new(Kind::Unsupported, message));
        }
        Ok(profile)
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Refuses a profile that says where to fetch keys but has none, rather than trying other sources.
    pub(super) fn refuse_without_keys(&self) -> Result<()> {
        let Some(field) = FETCHED.iter().find(|field| self.fields.contains_key(**field)) else { return Ok(()) };
        let name = &self.name;
        let message = format!(
            "the AWS profile `{name}` has `{field}` instead of keys, which is not followed; run first: eval \"$(aws \
             configure export-credentials --profile {name} --format env)\""
        );
        Err(Error::new(Kind::Unsupported, message))
    }
}

/// The fields of the matching sections; none if there is no such section.
fn sections(text: &str, is_meant: impl Fn(&str) -> bool) -> Option<BTreeMap<String, String>> {
    let (mut fields, mut inside) = (None, false);
    for line in text.lines() {
        // An indented line is a nested setting of the one above. None of those is used here.
        if line.starts_with([' ', '\t', '#', ';']) {
            continue;
        }
        if let Some(title) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn env(folder: &Path, more: &[(&str, &str)]) -> Env {
        let home = ("HOME".to_owned(), folder.display().to_string());
        more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).chain([home]).collect()
    }

    #[test]
    fn a_profile_is_found_in_both_files() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(".aws")).unwrap();
        let credentials = "# keys\n[default]\naws_access_key_id = AKID\naws_secret_access_key=s3cr=t\n\n[ work ]\n\
                           AWS_ACCESS_KEY_ID=WORK\naws_secret_access_key=w\n";
        let config = "[default]\nregion = eu-central-1\ns3 =\n  endpoint_url = nested\n[profile work]\nregion=us-west-2\n\
                      endpoint_url = http://127.0.0.1:9\n[profile sso]\nsso_session = x\n[work]\nregion=wrong\n";
        std::fs::write(folder.path().join(".aws/credentials"), credentials).unwrap();
        std::fs::write(folder.path().join(".aws/config"), config).unwrap();
        let read = |more: &[(&str, &str)]| Profile::read(&env(folder.path(), more), None, None);
        let found = read(&[]).unwrap();
        assert_eq!(found.field("aws_secret_access_key"), Some("s3cr=t"));
        assert_eq!(found.field("region"), Some("eu-central-1"));
        assert_eq!(found.field("endpoint_url"), None);
        let found = read(&[("AWS_PROFILE", "work")]).unwrap();
        assert_eq!((found.field("aws_access_key_id"), found.field("region")), (Some("WORK"), Some("us-west-2")));
        assert!(!format!("{found:?}").contains("WORK"));
        found.refuse_without_keys().unwrap();
        let error = read(&[("AWS_PROFILE", "sso")]).unwrap().refuse_without_keys().unwrap_err();
        assert!(error.to_string().contains("export-credentials --profile sso"), "{error}");
        let error = read(&[("AWS_PROFILE", "none")]).unwrap_err().to_string();
        assert!(error.contains("`none` is not in `") && error.contains(".aws/credentials`"), "{error}");
        let elsewhere = folder.path().join("keys");
        std::fs::write(&elsewhere, "[default]\naws_access_key_id=OTHER\n").unwrap();
        let found = read(&[("AWS_SHARED_CREDENTIALS_FILE", elsewhere.to_str().unwrap())]).unwrap();
        assert_eq!(found.field("aws_access_key_id"), Some("OTHER"));
        let given = |name, file| Profile::read(&env(folder.path(), &[("AWS_PROFILE", "none")]), Some(name), Some(file));
        assert_eq!(given("default", &elsewhere).unwrap().field("aws_access_key_id"), Some("OTHER"));
        let error = given("default", &folder.path().join("gone")).unwrap_err().to_string();
        assert!(error.contains("cannot read the AWS profile in `") && error.contains("gone`"), "{error}");
    }

    #[test]
    fn without_files_there_is_an_empty_profile() {
        let folder = tempfile::tempdir().unwrap();
        for env in [env(folder.path(), &[]), Env::new()] {
            assert!(Profile::read(&env, None, None).unwrap().fields.is_empty());
        }
    }
}
