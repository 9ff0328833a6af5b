//! The password file: a line `host:port:database:user:password` for each, `*` for any.

use crate::url::Secret;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The password of the first line that matches. As with libpq, a file that others can read is ignored.
pub(super) fn find(file: &Path, host: &str, port: u16, database: &str, user: &str) -> Option<Secret> {
    let about = std::fs::metadata(file).ok()?;
    if !about.is_file() || about.permissions().mode() & 0o077 != 0 {
        return None;
    }
    let text = std::fs::read_to_string(file).ok()?;
    let wanted = [host, &port.to_string(), database, user];
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = fields(line);
        let (password, places) = fields.split_last()?;
        let fits = places.len() == wanted.len()
            && places.iter().zip(wanted).all(|(field, wanted)| field == "*" || field == wanted);
        fits.then(|| Secret::new(password.as_str()))
    })
}

/// The fields of a line; `\` takes the next character as it is. Colons in the fifth field belong to it.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        let count = fields.len();
        if c == ':' && count < 5 {
            fields.push(String::new());
            continue;
        }
        let plain = if c == '\\' { characters.next().unwrap_or(c) } else { c };
        if let Some(field) = fields.last_mut() {
            field.push(plain);
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_fits_counts() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pass");
        let lines = "# a note\ndb:5432:*:other:no\nd\\:b:*:x:me:a\\:b:c\\\\d\ndb:5432:*:me:first\n*:*:*:me:second\n";
        std::fs::write(&file, lines).unwrap();
        let find = |host, port, database, user| {
            find(&file, host, port, database, user).map(|secret| secret.reveal().to_owned())
        };
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(find("db", 5432, "x", "me"), None, "others can read it");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(find("db", 5432, "x", "me").as_deref(), Some("first"));
        assert_eq!(find("db", 5433, "x", "me").as_deref(), Some("second"));
        assert_eq!(find("d:b", 1, "x", "me").as_deref(), Some("a:b:c\\d"));
        assert_eq!(find("db", 5432, "x", "nobody"), None);
    }
}
