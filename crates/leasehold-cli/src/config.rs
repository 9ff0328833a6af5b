//! Settings: flags over environment over `leasehold.toml` (the project's, then the user's) over defaults.
//!
//! Promise: every value is parsed once, here, and knows where it came from. Non-promise: settings of one command only
//! are that command's own.

use crate::args::Common;
use leasehold_core::{Error, Kind, Label, Result, Ttl, parse_duration};
use leasehold_stores::StoreUrl;
use serde::Deserialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const FILE: &str = "leasehold.toml";
/// TTL rule of thumb for jobs of unknown length: two renewals may fail within a minute's outage.
const DEFAULT_TTL: Duration = Duration::from_secs(90);

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The command line.
    Flag,
    /// This environment variable.
    Environment(&'static str),
    /// This file.
    File(PathBuf),
    /// Nowhere: it is the default.
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Flag => f.write_str("flag"),
            Source::Environment(name) => write!(f, "environment {name}"),
            Source::File(path) => write!(f, "file {}", path.display()),
            Source::Default => f.write_str("default"),
        }
    }
}

/// A value and where it came from.
#[derive(Debug, Clone)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Its source.
    pub source: Source,
}

/// One `leasehold.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    store: Option<String>,
    ttl: Option<String>,
    label: Option<String>,
    grace: Option<String>,
    held_exit_code: Option<u8>,
    state: Option<String>,
    /// `leasehold schedule` reads these.
    #[serde(default, rename = "job")]
    _job: serde::de::IgnoredAny,
}

/// What a flag said, for the settings that a command has flags for.
#[derive(Debug, Default)]
pub struct Flags<'a> {
    /// `--ttl`
    pub ttl: Option<&'a str>,
    /// `--label`
    pub label: Option<&'a str>,
    /// `--grace`
    pub grace: Option<&'a str>,
    /// `--held-exit-code`
    pub held_exit_code: Option<&'a str>,
    /// `--state`
    pub state: Option<&'a str>,
    /// Whoever started this has read the files, and they may have changed since.
    pub no_files: bool,
}

/// All settings in force.
#[derive(Debug)]
pub struct Settings {
    /// Where leases are kept.
    pub store: Setting<StoreUrl>,
    /// How long a grant lasts unless renewed.
    pub ttl: Setting<Ttl>,
    /// What holders call themselves; the machine's name if none.
    pub label: Setting<Option<Label>>,
    /// Between SIGTERM and SIGKILL; derived from the TTL if none.
    pub grace: Setting<Option<Duration>>,
    /// The exit code of a skipped run.
    pub held_exit_code: Setting<u8>,
    /// Where guards that keep their fence in the store keep their high water too; the user's state folder if none.
    pub state: Setting<Option<PathBuf>>,
}

impl Settings {
    /// Gathers the settings for a command without flags of its own.
    pub fn gather(common: &Common) -> Result<Self> {
        Settings::gather_with(common, Flags::default())
    }

    /// Gathers the settings.
    pub fn gather_with(common: &Common, flags: Flags<'_>) -> Result<Self> {
        Settings::gather_near(common, flags, None)
    }

    /// The same, with this file in the place of the project's.
    pub fn gather_near(common: &Common, flags: Flags<'_>, file: Option<&Path>) -> Result<Self> {
        let files = if flags.no_files { Files(Vec::new()) } else { Files::read(file)? };
        let store = match files.pick(common.store.as_deref(), "LEASEHOLD_STORE", |f| f.store.clone())? {
            Some((text, source)) => {
                // A relative path in a file means relative to that file.
                let base = match &source {
                    Source::File(path) => path.parent().map(Path::to_path_buf),
                    _ => None,
                };
                let url = StoreUrl::parse_in(base.as_deref(), &text).map_err(|e| blame(e, "store", &source))?;
                Setting { value: url, source }
            }
            None => Setting { value: StoreUrl::user_default()?, source: Source::Default },
        };
        let ttl = parsed(files.pick(flags.ttl, "LEASEHOLD_TTL", |f| f.ttl.clone())?, "ttl", |t| t.parse::<Ttl>())?;
        let label = files.pick(flags.label, "LEASEHOLD_LABEL", |f| f.label.clone())?;
        let label = parsed(label, "label", |t| Label::named("label", t))?;
        let grace = files.pick(flags.grace, "LEASEHOLD_GRACE", |f| f.grace.clone())?;
        let grace = parsed(grace, "grace", parse_duration)?;
        let held = files.pick(flags.held_exit_code, "LEASEHOLD_HELD_EXIT_CODE", |f| {
            f.held_exit_code.map(|code| code.to_string())
        })?;
        let held = parsed(held, "held_exit_code", |t| {
            t.parse::<u8>().map_err(|_| Error::invalid("exit code", t, "use a whole number from 0 to 255"))
        })?;
        let state = files.pick(flags.state, "LEASEHOLD_STATE", |f| f.state.clone())?;
        let state = state.map(|(text, source)| folder(&text, source)).transpose()?;
        Ok(Settings {
            store,
            ttl: ttl.map_or_else(|| Ttl::new(DEFAULT_TTL).map(default), Ok)?,
            label: optional(label),
            grace: optional(grace),
            held_exit_code: held.unwrap_or_else(|| default(0)),
            state: optional(state),
        })
    }

    /// The folder in which a guard keeps its high water; none if it was told to go without.
    pub fn state_folder(&self, is_refused: bool) -> Result<Option<PathBuf>> {
        if is_refused {
            return Ok(None);
        }
        if let Some(folder) = &self.state.value {
            return Ok(Some(folder.clone()));
        }
        leasehold_system::paths::state_dir().map(Some).map_err(|error| {
            let message = "cannot tell where this user's state is kept; give a folder with --state, or go without one by \
                           --no-state";
            Error::new(Kind::Unsupported, message).with_source(error)
        })
    }
}

/// A folder, meant from the file that names it.
fn folder(text: &str, source: Source) -> Result<Setting<PathBuf>> {
    let base = match &source {
        Source::File(path) => path.parent().map(Path::to_path_buf),
        _ => None,
    };
    let from_base = base.map_or_else(|| PathBuf::from(text), |base| base.join(text));
    let value = std::path::absolute(from_base)
        .map_err(|_| blame(Error::invalid("folder", text, "use the path of a folder"), "state", &source))?;
    Ok(Setting { value, source })
}

fn default<T>(value: T) -> Setting<T> {
    Setting { value, source: Source::Default }
}

fn optional<T>(setting: Option<Setting<T>>) -> Setting<Option<T>> {
    match setting {
        Some(setting) => Setting { value: Some(setting.value), source: setting.source },
        None => default(None),
    }
}

fn parsed<T>(
    picked: Option<(String, Source)>,
    field: &str,
    parse: impl Fn(&str) -> Result<T>,
) -> Result<Option<Setting<T>>> {
    picked
        .map(|(text, source)| match parse(&text) {
            Ok(value) => Ok(Setting { value, source }),
            Err(error) => Err(blame(error, field, &source)),
        })
        .transpose()
}

/// Says where a wrong value came from.
pub fn blame(error: Error, field: &str, source: &Source) -> Error {
    match source {
        Source::Default => error,
        Source::Flag => blame_flag(error, &format!("--{}", field.replace('_', "-"))),
        _ => error.with_origin(format!("setting `{field}`, from {source}")),
    }
}

/// Says which flag had the wrong value.
pub fn blame_flag(error: Error, flag: &str) -> Error {
    error.with_origin(format!("from {flag}"))
}

/// The duration that a flag gives, if it is given.
pub fn duration_of(flag: &str, text: Option<&str>) -> Result<Option<Duration>> {
    text.map(parse_duration).transpose().map_err(|e| blame_flag(e, flag))
}

/// The files that apply here, nearest first.
struct Files(Vec<(PathBuf, File)>);

impl Files {
    fn read(file: Option<&Path>) -> Result<Self> {
        let mut files = Vec::new();
        for path in [file.map(Path::to_path_buf).or_else(project_file), user_file()].into_iter().flatten() {
            if files.iter().all(|(known, _)| *known != path)
                && let Some(file) = read_file(&path)?
            {
                files.push((path, file));
            }
        }
        Ok(Files(files))
    }

    fn pick(
        &self,
        flag: Option<&str>,
        variable: &'static str,
        field: impl Fn(&File) -> Option<String>,
    ) -> Result<Option<(String, Source)>> {
        if let Some(text) = flag {
            return Ok(Some((text.into(), Source::Flag)));
        }
        match std::env::var(variable) {
            // An empty variable is how people unset one for a single command.
            Ok(text) if !text.is_empty() => return Ok(Some((text, Source::Environment(variable)))),
            Err(std::env::VarError::NotUnicode(_)) => {
                return Err(Error::new(Kind::Invalid, format!("environment variable {variable} is not text")));
            }
            _ => {}
        }
        let found = self.0.iter().find_map(|(path, file)| Some((field(file)?, Source::File(path.clone()))));
        Ok(found)
    }
}

pub fn project_file() -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    here.ancestors().map(|dir| dir.join(FILE)).find(|path| path.is_file())
}

pub fn user_file() -> Option<PathBuf> {
    let dir = match std::env::var_os("XDG_CONFIG_HOME").filter(|v| !v.is_empty()) {
        Some(dir) => PathBuf::from(dir),
        None => PathBuf::from(std::env::var_os("HOME").filter(|v| !v.is_empty())?).join(".config"),
    };
    Some(dir.join("leasehold").join(FILE))
}

fn read_file(path: &Path) -> Result<Option<File>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        // Under `sudo` or cron HOME may be another user's: what that user set is not ours.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied && path.symlink_metadata().is_err() => {
            return Ok(None);
        }
        Err(error) => {
            let message = format!("cannot read settings `{}`", path.display());
            return Err(Error::new(Kind::Unsupported, message).with_source(error));
        }
    };
    toml::from_str(&text).map(Some).map_err(|error| {
        let wrong = error.message().replace('\n', " ");
        let before = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = 1 + text.bytes().take(before).filter(|byte| *byte == b'\n').count();
        Error::new(Kind::Invalid, format!("invalid settings `{}`, line {line}: {wrong}", path.display()))
    })
}
