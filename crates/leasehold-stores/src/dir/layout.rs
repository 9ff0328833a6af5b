//! Names and files of a directory store.
//!
//! Promise: two lease names never share a folder, even where upper and lower case are the
//! same or a component has at most 255 bytes. A version file that was cut or edited is
//! detected. Non-promise: a flipped bit in the body is detected by the record's own checksum.

use leasehold_core::store::Revision;
use leasehold_core::{Error, Kind, LeaseName, Nonce, Result};
use std::path::{Path, PathBuf};

/// The longest component that is written, in bytes, continuation mark included.
const MAX_COMPONENT: usize = 200;
/// Ends every component of a name but the last. No encoded character contains it.
const CONTINUED: char = '~';

/// The folder of a name, relative to its shelf.
///
/// Lower-case letters, digits, `_`, `-` and `.` stay; `/` becomes `+`; `X` becomes `=x`; a dot that would begin a
/// component becomes `=.`, so that none is hidden, `.` or `..`.
pub fn folder_of(name: &LeaseName) -> PathBuf {
    let mut path = PathBuf::new();
    let mut component = String::new();
    for c in name.as_str().chars() {
        // Room for the longest piece and the mark.
        if component.len() + 3 > MAX_COMPONENT {
            component.push(CONTINUED);
            path.push(&component);
            component.clear();
        }
        match c {
            '/' => component.push('+'),
            '.' if component.is_empty() => component.push_str("=."),
            'A'..='Z' => component.extend(['=', c.to_ascii_lowercase()]),
            _ => component.push(c),
        }
    }
    path.push(component);
    path
}

/// The name whose folder has these components; none if no name has that folder.
pub fn name_of(components: &[String]) -> Option<LeaseName> {
    let mut name = String::new();
    let (last, before) = components.split_last()?;
    let before: Option<Vec<&str>> = before.iter().map(|c| c.strip_suffix(CONTINUED)).collect();
    for component in before?.into_iter().chain([last.as_str()]) {
        let mut chars = component.chars();
        while let Some(c) = chars.next() {
            name.push(match c {
                '+' => '/',
                '=' => chars.next()?.to_ascii_uppercase(),
                _ => c,
            });
        }
    }
    let name = LeaseName::new(name).ok()?;
    // Another program's folder may decode to a name without being that name's folder.
    (folder_of(&name) == components.iter().collect::<PathBuf>()).then_some(name)
}

/// Whether a folder of this name contains the rest of longer names instead of versions.
pub fn is_continued(component: &str) -> bool {
    component.ends_with(CONTINUED)
}

/// Whether a folder of this name may be created above a key's folder. No encoded name contains an `@`.
pub fn may_be_made(component: &str) -> bool {
    is_continued(component) || component.contains('@')
}

/// The file name of a version.
pub fn file_of(number: u64) -> String {
    format!("{number:020}")
}

/// The number of a version file; none for any other file name.
pub fn number_of(file: &str) -> Option<u64> {
    let digits = file.len() == 20 && file.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| file.parse().ok())?.filter(|number| *number > 0)
}

/// Identifies a version of a key: its number, and the random tag that no other version ever has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub number: u64,
    pub tag: Nonce,
}

impl Mark {
    pub fn revision(self) -> Revision {
        Revision(format!("{}.{}", self.number, self.tag))
    }

    /// None for a revision that this store cannot have issued.
    pub fn of(revision: &Revision) -> Option<Self> {
        let (number, tag) = revision.0.split_once('.')?;
        Some(Mark { number: number.parse().ok()?, tag: tag.parse().ok()? })
    }
}

/// The content of a version file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    pub mark: Mark,
    /// The tag of the version that this one replaced; none for a key's first.
    pub follows: Option<Nonce>,
    /// The value; none if the version is the trace of an erase.
    pub value: Option<Vec<u8>>,
}

const MAGIC: &str = "leasehold-version-1";
/// Stands for the previous tag in a key's first version.
const FIRST: &str = "-";

impl Version {
    pub fn encode(mark: Mark, follows: Option<Nonce>, value: Option<&[u8]>) -> Vec<u8> {
        let state = if value.is_some() { "live" } else { "erased" };
        let follows = follows.map_or_else(|| FIRST.to_owned(), |tag| tag.to_string());
        let body = value.unwrap_or_default();
        let mut bytes = format!("{MAGIC} {} {} {follows} {state} {}\n", mark.number, mark.tag, body.len()).into_bytes();
        bytes.extend_from_slice(body);
        bytes
    }

    /// Decodes the file of this number; `path` names the file in messages.
    pub fn decode(number: u64, bytes: &[u8], path: &Path) -> Result<Self> {
        Self::parse(number, bytes).ok_or_else(|| {
            let message = format!(
                "corrupt version file {}: its header or length is wrong; it was left as it is, restore it from a backup",
                path.display()
            );
            Error::new(Kind::Corrupt, message)
        })
    }

    fn parse(number: u64, bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|b| *b == b'\n')?;
        let head = std::str::from_utf8(&bytes[..end]).ok()?;
        let body = &bytes[end + 1..];
        let words: Vec<&str> = head.split(' ').collect();
        let [MAGIC, found, tag, follows, state, len] = words[..] else { return None };
        let mark = Mark { number, tag: tag.parse().ok()? };
        let follows = if follows == FIRST { None } else { Some(follows.parse().ok()?) };
        let value = match state {
            "live" => Some(body.to_vec()),
            "erased" if body.is_empty() => None,
            _ => return None,
        };
        (found == number.to_string() && len == body.len().to_string()).then_some(Version { mark, follows, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn components(path: &Path) -> Vec<String> {
        path.iter().map(|c| c.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn every_name_comes_back_from_its_folder() {
        let shouted = "A".repeat(200);
        let dots = format!("A{}", ".".repeat(199));
        let mixed = format!("{}.b", "Xy/".repeat(66));
        for name in ["a", "daily-publish", "team-a/Reports/w.1_x", ".hidden", "a..b", "A", &shouted, &dots, &mixed] {
            let name = LeaseName::new(name).unwrap();
            let folder = folder_of(&name);
            for component in folder.iter().map(|c| c.to_str().unwrap()) {
                assert!(component.len() <= MAX_COMPONENT && !component.starts_with('.'), "{component}");
                assert!(!component.chars().any(|c| c.is_ascii_uppercase() || c == '/'), "{component}");
            }
            assert_eq!(name_of(&components(&folder)), Some(name));
        }
    }

    #[test]
    fn a_folder_that_no_name_has_is_nobodys() {
        for folder in ["A", "x y", "=", "=1", "a~", "a/b", ".x", "=/b", "+a"] {
            assert_eq!(name_of(&components(Path::new(folder))), None, "{folder}");
        }
    }

    #[test]
    fn a_version_survives_its_file_and_damage_is_noticed() {
        let mark = Mark { number: 7, tag: Nonce::from_u128(9) };
        let bytes = Version::encode(mark, Some(Nonce::from_u128(8)), Some(b"hello\nworld"));
        let path = Path::new("x");
        let decoded = Version::decode(7, &bytes, path).unwrap();
        assert_eq!((decoded.follows, &*decoded.value.unwrap()), (Some(Nonce::from_u128(8)), &b"hello\nworld"[..]));
        assert_eq!(Mark::of(&mark.revision()), Some(mark));
        for len in 0..bytes.len() {
            assert_eq!(Version::decode(7, &bytes[..len], path).unwrap_err().kind(), Kind::Corrupt);
        }
        assert_eq!(Version::decode(8, &bytes, path).unwrap_err().kind(), Kind::Corrupt);
        let erased = Version::encode(mark, None, None);
        assert_eq!(Version::decode(7, &erased, path).unwrap().value, None);
    }

    #[test]
    fn only_version_files_have_numbers() {
        assert_eq!(number_of(&file_of(u64::MAX)), Some(u64::MAX));
        for file in
            ["1", "00000000000000000000", "0000000000000000000x", "99999999999999999999", ".nfs0000000000000001"]
        {
            assert_eq!(number_of(file), None, "{file}");
        }
    }
}
