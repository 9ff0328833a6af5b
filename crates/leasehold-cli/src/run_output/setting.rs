//! The settings of kept output, parsed.

use super::{Bucket, Keeping};
use crate::config::Settings;
use leasehold_core::{Error, Result};
use leasehold_stores::StoreUrl;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

pub const OUTPUT: &str = "LEASEHOLD_OUTPUT";
pub const OUTPUT_SIZE: &str = "LEASEHOLD_OUTPUT_SIZE";
pub const OUTPUT_RUNS: &str = "LEASEHOLD_OUTPUT_RUNS";

/// Refuses what a job says of its own output, if it is wrong.
pub fn check_variables(env: &BTreeMap<String, String>) -> Result<()> {
    let blame = |name: &'static str| move |e: Error| Error::new(e.kind(), format!("env `{name}`: {e}"));
    for (name, value) in env {
        match name.as_str() {
            OUTPUT => drop(Target::parse(None, value).map_err(blame(OUTPUT))?),
            OUTPUT_SIZE => drop(Size::parse(value).map_err(blame(OUTPUT_SIZE))?),
            OUTPUT_RUNS => drop(parse_runs(value).map_err(blame(OUTPUT_RUNS))?),
            _ => {}
        }
    }
    Ok(())
}

/// Where output is kept.
#[derive(Debug, Clone)]
pub enum Target {
    /// Output is not stored.
    Off,
    Folder(PathBuf),
    /// Below an address in a bucket.
    Bucket(StoreUrl),
}

impl Target {
    /// Parses `off`, the path of a folder, relative to `here`, or the address of a bucket.
    pub fn parse(here: Option<&Path>, text: &str) -> Result<Self> {
        let allowed =
            "use `off`, the path of a folder, or s3://bucket/prefix, gs://bucket/prefix, az://container/prefix";
        if text == "off" {
            return Ok(Target::Off);
        }
        match text.split_once("://") {
            Some((scheme, _)) if crate::targets::OBJECT.contains(&scheme) => {
                let url: StoreUrl = text.parse()?;
                match url.address() {
                    Some(_) => Ok(Target::Bucket(url)),
                    None => Err(Error::invalid("output", scheme, allowed)),
                }
            }
            // The rest may hold a password.
            Some((scheme, _)) => Err(Error::invalid("output", format!("{scheme}://…"), allowed)),
            None if text.chars().any(char::is_control) => Err(Error::invalid("output", text, allowed)),
            None => std::path::absolute(here.unwrap_or(Path::new("")).join(text))
                .map(Target::Folder)
                .map_err(|_| Error::invalid("output", text, allowed)),
        }
    }

    /// For another process, with passwords.
    pub fn portable(&self) -> String {
        match self {
            Target::Bucket(url) => url.portable(),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Off => f.write_str("off"),
            Target::Folder(path) => path.display().fmt(f),
            Target::Bucket(url) => url.fmt(f),
        }
    }
}

/// A number of bytes: `500KB`, `8MB`, `1GB`, in steps of 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub u64);

impl Size {
    const LEAST: u64 = 4 * 1024;
    const MOST: u64 = 1024 * 1024 * 1024;
    const UNITS: [(&'static str, u64); 3] = [("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)];

    pub fn parse(text: &str) -> Result<Self> {
        let bytes = bytes_of(text).filter(|bytes| (Size::LEAST..=Size::MOST).contains(bytes));
        bytes.map(Size).ok_or_else(|| Error::invalid("size", text, "use 4KB to 1GB, such as 500KB or 8MB"))
    }
}

/// A number of bytes, with or without a unit: `64KB` and `64KiB` are the same.
pub fn bytes_of(text: &str) -> Option<u64> {
    let plain = text.strip_suffix("iB").map_or_else(|| text.to_owned(), |start| format!("{start}B"));
    let sized = Size::UNITS.iter().find_map(|(unit, factor)| Some((plain.strip_suffix(unit)?, *factor)));
    let (number, factor) = sized.unwrap_or((text, 1));
    number.trim_end().parse::<u64>().ok()?.checked_mul(factor)
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = Size::UNITS.iter().find(|(_, factor)| self.0.is_multiple_of(*factor));
        match unit {
            Some((unit, factor)) => write!(f, "{}{unit}", self.0 / factor),
            None => self.0.fmt(f),
        }
    }
}

/// A number of runs.
pub fn parse_runs(text: &str) -> Result<u64> {
    let number = text.parse().ok().filter(|number| (1..=10_000).contains(number));
    number.ok_or_else(|| Error::invalid("number of runs", text, "use a whole number from 1 to 10000"))
}

impl Settings {
    /// How output is kept; none if it is not.
    pub fn keeping(&self) -> Result<Option<Keeping>> {
        let state = || {
            self.state_folder(false).map(|folder| folder.unwrap_or_default().join("output")).map_err(|error| {
                let message =
                    "output is not kept, and the run continues: set `output` or LEASEHOLD_OUTPUT to a folder, or to off";
                Error::new(error.kind(), message).with_source(error)
            })
        };
        let (root, bucket) = match &self.output.value {
            Some(Target::Off) => return Ok(None),
            Some(Target::Folder(folder)) => (folder.clone(), None),
            Some(Target::Bucket(url)) => (state()?, Some(Bucket::new(url.clone()))),
            None => (state()?, None),
        };
        let (size, runs) = (self.output_size.value.0, self.output_runs.value);
        Ok(Some(Keeping { root, bucket, size, runs, spool: None }))
    }

    /// The same for a run, which continues without it.
    pub fn keeping_or_say(&self) -> Option<Keeping> {
        self.keeping().unwrap_or_else(|error| {
            tracing::warn!("{error}");
            None
        })
    }

    /// The same setting as environment variables, for processes of ours that read no files.
    pub fn output_environment(&self) -> [(&'static str, String); 3] {
        let output = match (&self.output.value, self.keeping()) {
            (Some(target), _) => target.portable(),
            (None, Ok(Some(keeping))) => keeping.root.display().to_string(),
            (None, _) => String::new(),
        };
        let (size, runs) = (self.output_size.value.to_string(), self.output_runs.value.to_string());
        [(OUTPUT, output), (OUTPUT_SIZE, size), (OUTPUT_RUNS, runs)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_bounds() {
        for (text, bytes) in [("4096", 4_096), ("4KB", 4_096), ("8MB", 8 << 20), ("1GB", 1 << 30), ("5000", 5_000)] {
            let size = Size::parse(text).unwrap();
            assert_eq!(size.0, bytes);
            assert_eq!(Size::parse(&size.to_string()).unwrap(), size);
        }
        for text in ["", "KB", "4", "2GB", "-8MB", "8 parsecs", "99999999999999999999GB"] {
            assert!(Size::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_place_is_off_a_folder_or_a_bucket() {
        let parse = |text| Target::parse(Some(Path::new("/etc/app")), text);
        assert!(matches!(parse("off"), Ok(Target::Off)));
        assert!(matches!(parse("logs"), Ok(Target::Folder(path)) if path == Path::new("/etc/app/logs")));
        assert!(matches!(parse("/var/log/x"), Ok(Target::Folder(path)) if path == Path::new("/var/log/x")));
        let error = parse("https://user:secret@host/x").unwrap_err().to_string();
        assert!(error.contains("https://…") && !error.contains("secret"), "{error}");
        assert!(parse("a\nb").is_err());
    }
}
