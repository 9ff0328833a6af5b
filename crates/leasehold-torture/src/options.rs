//! What a run is asked to do.

use leasehold_system::undo::Fix;
use std::path::PathBuf;

const USAGE: &str = "usage: torture [--minutes N] [--seed N] [--undo FIX|all] [--served] [--leasehold PATH]";

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Options {
    pub storm_ms: u64,
    pub seed: u64,
    /// The fixes to turn off: one run for each; none is the ordinary run.
    pub undo: Vec<Fix>,
    /// Whether the fleet goes through a server.
    pub is_served: bool,
    /// Another binary than the one that was just built.
    pub leasehold: Option<PathBuf>,
}

impl Options {
    pub(crate) fn parse(words: &[String]) -> Result<Self, String> {
        let mut options = Options {
            storm_ms: 60_000,
            seed: leasehold_system::clock::wall_ms(),
            undo: Vec::new(),
            is_served: false,
            leasehold: None,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if word == "--served" {
                options.is_served = true;
                continue;
            }
            let value = words.next().ok_or(USAGE)?;
            match word.as_str() {
                "--minutes" => {
                    let minutes: f64 = value.parse().map_err(|_| format!("--minutes {value}: a number, such as 10"))?;
                    options.storm_ms = (minutes * 60_000.0) as u64;
                }
                "--seed" => options.seed = value.parse().map_err(|_| format!("--seed {value}: a whole number"))?,
                "--leasehold" => options.leasehold = Some(value.into()),
                "--undo" if value == "all" => options.undo = Fix::ALL.to_vec(),
                "--undo" => options.undo.push(fix(value)?),
                _ => return Err(USAGE.into()),
            }
        }
        Ok(options)
    }
}

fn fix(name: &str) -> Result<Fix, String> {
    let known: Vec<&str> = Fix::ALL.iter().map(|fix| fix.as_str()).collect();
    let found = Fix::ALL.iter().find(|fix| fix.as_str() == name).copied();
    found.ok_or_else(|| format!("--undo {name}: use `all` or one of: {}", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_understood_or_refused() {
        let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
        let options = Options::parse(&words("--minutes 0.5 --seed 7")).unwrap();
        assert_eq!((options.storm_ms, options.seed, options.is_served), (30_000, 7, false));
        assert!(Options::parse(&words("--served --seed 7")).unwrap().is_served);
        assert!(Options::parse(&words("--minutes")).is_err());
        assert!(Options::parse(&words("--undo no-such-fix")).unwrap_err().contains("use `all`"));
    }
}
