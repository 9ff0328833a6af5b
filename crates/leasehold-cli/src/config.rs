//! Settings: flags over environment over `leasehold.toml` (the project's, then the user's) over defaults.
//!
//! Promise: every value is parsed once, here, and knows where it came from. Non-promise: settings of one command only
//! are that command's own.

use crate::args::Common;
use crate::log::{self, Format, Levels};
use crate::notify::NotifyTables;
use crate::oidc::OidcTables;
use crate::run_context::RunContext;
use crate::run_output::{self, OUTPUT, OUTPUT_RUNS, OUTPUT_SIZE};
pub use crate::source::Source;
use crate::supervise::deadlines::Deadlines;
use crate::toml_reader::RawTables;
pub use crate::toml_reader::parse_toml;
use leasehold_core::{
    Error, Kind, Label, NamePattern, Result, Retention, Ttl, format_duration, parse_duration, printable, secret,
};
use leasehold_server::status::Address;
use leasehold_stores::StoreUrl;
use rustix::fs::OFlags;
use serde::Deserialize;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const FILE: &str = "leasehold.toml";
/// Names the address of one process; those that it starts have none.
pub const METRICS: &str = "LEASEHOLD_METRICS";
/// TTL rule of thumb for jobs of unknown length: two renewals may fail within a minute's outage.
const DEFAULT_TTL: Duration = Duration::from_secs(90);
/// Of a run whose output is longer, the beginning and the end are kept.
pub const DEFAULT_OUTPUT_SIZE: run_output::Size = run_output::Size(8 << 20);
const DEFAULT_OUTPUT_RUNS: u64 = 50;
/// Variables that may hold a secret. Each can name a file that has it instead, by its name and `_FILE`.
pub const SECRETS: [&str; 3] = ["LEASEHOLD_STORE", "LEASEHOLD_TOKEN", "LEASEHOLD_PING"];

/// A value and where it came from.
#[derive(Debug, Clone)]
pub struct Setting<T> {
    /// As it is in force: parsed and checked.
    pub value: T,
    /// Who set it, for messages and `leasehold config`.
    pub source: Source,
}

/// The contents of one `leasehold.toml`, not yet checked.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    store: Option<String>,
    ttl: Option<String>,
    label: Option<String>,
    grace: Option<String>,
    held_exit_code: Option<u8>,
    state: Option<String>,
    history_transfers: Option<u64>,
    history_age: Option<String>,
    log: Option<String>,
    log_format: Option<String>,
    metrics: Option<String>,
    metrics_leases: Option<Vec<String>>,
    #[serde(default)]
    notify: RawTables,
    #[serde(default)]
    oidc: RawTables,
    output: Option<String>,
    output_size: Option<String>,
    output_runs: Option<u64>,
    /// `leasehold schedule` reads these.
    #[serde(default, rename = "job")]
    _job: serde::de::IgnoredAny,
    #[serde(default, rename = "owner")]
    _owner: serde::de::IgnoredAny,
    #[serde(default, rename = "revision")]
    _revision: serde::de::IgnoredAny,
}

/// What flags say, for the settings that a command has flags for.
#[derive(Debug, Default)]
pub struct Flags {
    /// `--ttl`
    pub ttl: Option<String>,
    /// `--label`
    pub label: Option<String>,
    /// `--grace`
    pub grace: Option<String>,
    /// `--held-exit-code`
    pub held_exit_code: Option<String>,
    /// `--state`
    pub state: Option<String>,
    /// `--metrics`
    pub metrics: Option<String>,
    /// `--metrics-leases`, all of them
    pub metrics_leases: Option<String>,
    /// `--file`, in place of the project's.
    pub file: Option<PathBuf>,
    /// The parent process has read the files, and they may have changed since.
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
    /// How many old transfers of a lease are kept.
    pub history_transfers: Setting<u64>,
    /// For how long they are kept; for ever if none.
    pub history_age: Setting<Option<Duration>>,
    /// From which level on is logged; as the command has it if none.
    pub log: Setting<Option<Levels>>,
    /// How lines of the log look.
    pub log_format: Setting<Format>,
    /// Where to answer those who ask for numbers; nowhere if none.
    pub metrics: Setting<Option<Address>>,
    /// Which leases have numbers of their own, although they are no jobs.
    pub metrics_leases: Setting<Vec<NamePattern>>,
    /// The `[[notify]]` tables, checked when they are used.
    pub notify: NotifyTables,
    /// Whose tokens `serve` exchanges for keys; checked by it.
    #[cfg_attr(not(feature = "server"), allow(dead_code, reason = "only a server reads them"))]
    pub oidc: OidcTables,
    /// Where the output of runs is kept; below the state folder if none.
    pub output: Setting<Option<run_output::Target>>,
    /// How many bytes of a run's output.
    pub output_size: Setting<run_output::Size>,
    /// Of how many runs of a job or a queue.
    pub output_runs: Setting<u64>,
}

impl Settings {
    /// Gathers the settings for a command without flags of its own.
    pub fn gather(common: &Common) -> Result<Self> {
        Settings::gather_with(common, &Flags::default())
    }

    /// Reads files and environment, and checks every setting.
    pub fn gather_with(common: &Common, flags: &Flags) -> Result<Self> {
        let files = if flags.no_files { Files(Vec::new()) } else { Files::read(flags.file.as_deref())? };
        // A relative path in a file is relative to that file.
        let store = files.pick(&common.store, "store", "LEASEHOLD_STORE", |f| f.store.clone(), store_at);
        let store = match store_of_run(common)? {
            Some(store) => Some(Setting { value: store, source: Source::Context }),
            None => store?,
        };
        let state = files.pick(&flags.state, "state", "LEASEHOLD_STATE", |f| f.state.clone(), state_folder)?;
        let ttl = files.pick(&flags.ttl, "ttl", "LEASEHOLD_TTL", |f| f.ttl.clone(), |text, _| text.parse::<Ttl>())?;
        let label = |text: &str, _: &Source| Label::named("label", text);
        let label = files.pick(&flags.label, "label", "LEASEHOLD_LABEL", |f| f.label.clone(), label)?;
        let grace = |text: &str, _: &Source| parse_duration(text);
        let grace = files.pick(&flags.grace, "grace", "LEASEHOLD_GRACE", |f| f.grace.clone(), grace)?;
        let code = |text: &str, _: &Source| {
            text.parse::<u8>().map_err(|_| Error::invalid("exit code", text, "use a whole number from 0 to 255"))
        };
        let in_file = |f: &File| f.held_exit_code.map(|code| code.to_string());
        let held_exit_code =
            files.pick(&flags.held_exit_code, "held_exit_code", "LEASEHOLD_HELD_EXIT_CODE", in_file, code)?;
        let count = |text: &str, _: &Source| {
            let number = text.parse::<u64>().ok().filter(|number| (100..=1_000_000).contains(number));
            number.ok_or_else(|| Error::invalid("number of transfers", text, "use a whole number from 100 to 1000000"))
        };
        let in_file = |f: &File| f.history_transfers.map(|number| number.to_string());
        let history_transfers =
            files.pick(&None, "history_transfers", "LEASEHOLD_HISTORY_TRANSFERS", in_file, count)?;
        let age = |text: &str, _: &Source| parse_duration(text);
        let history_age = files.pick(&None, "history_age", "LEASEHOLD_HISTORY_AGE", |f| f.history_age.clone(), age)?;
        let log = files.pick(&common.log, "log", log::LEVELS_VARIABLE, |f| f.log.clone(), |text, _| text.parse())?;
        let in_file = |f: &File| f.log_format.clone();
        let log_format =
            files.pick(&common.log_format, "log_format", log::FORMAT_VARIABLE, in_file, |text, _| text.parse())?;
        let metrics = |text: &str, _: &Source| text.parse::<Address>();
        let metrics = files.pick(&flags.metrics, "metrics", METRICS, |f| f.metrics.clone(), metrics)?;
        let patterns = |text: &str, _: &Source| text.split(',').map(|one| one.trim().parse()).collect();
        let in_file = |f: &File| f.metrics_leases.as_ref().filter(|all| !all.is_empty()).map(|all| all.join(","));
        let variable = "LEASEHOLD_METRICS_LEASES";
        let metrics_leases = files.pick(&flags.metrics_leases, "metrics_leases", variable, in_file, patterns)?;
        let output = |text: &str, source: &Source| run_output::Target::parse(source.folder(), text);
        let output = files.pick(&None, "output", OUTPUT, |f| f.output.clone(), output)?;
        let size = |text: &str, _: &Source| run_output::Size::parse(text);
        let output_size = files.pick(&None, "output_size", OUTPUT_SIZE, |f| f.output_size.clone(), size)?;
        let in_file = |f: &File| f.output_runs.map(|number| number.to_string());
        let runs = |text: &str, _: &Source| run_output::parse_runs(text);
        let output_runs = files.pick(&None, "output_runs", OUTPUT_RUNS, in_file, runs)?;
        let (notify, oidc) = (files.tables(|f| &f.notify), files.tables(|f| &f.oidc));
        Ok(Settings {
            store: store.map_or_else(own_store, Ok)?,
            ttl: ttl.map_or_else(|| Ttl::new(DEFAULT_TTL).map(default), Ok)?,
            label: optional(label),
            grace: optional(grace),
            held_exit_code: held_exit_code.unwrap_or_else(|| default(0)),
            state: optional(state),
            history_transfers: history_transfers.unwrap_or_else(|| default(Retention::default().transfers)),
            history_age: optional(history_age),
            log: optional(log),
            log_format: log_format.unwrap_or_else(|| default(Format::Text)),
            metrics: optional(metrics),
            metrics_leases: metrics_leases.unwrap_or_else(|| default(Vec::new())),
            notify: NotifyTables { tables: notify.0, file: notify.1 },
            oidc: OidcTables { tables: oidc.0, file: oidc.1 },
            output: optional(output),
            output_size: output_size.unwrap_or_else(|| default(DEFAULT_OUTPUT_SIZE)),
            output_runs: output_runs.unwrap_or_else(|| default(DEFAULT_OUTPUT_RUNS)),
        })
    }

    /// The store that this file of settings names.
    pub fn store_of(path: &Path) -> Result<StoreUrl> {
        let text = read_file(path)?.and_then(|file| file.store);
        let missing = || Error::new(Kind::Unsupported, format!("`{}` does not name the store", path.display()));
        StoreUrl::parse_in(path.parent(), &text.ok_or_else(missing)?)
    }

    /// How much history is kept of each lease.
    pub fn retention(&self) -> Retention {
        Retention { transfers: self.history_transfers.value, age: self.history_age.value }
    }

    /// The folder in which a guard keeps its high water; none if the user turned that off.
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

    /// When a command under a lease of this TTL must be told to end, and when it is ended.
    pub fn deadlines(&self, ttl: Ttl) -> Result<Deadlines> {
        Deadlines::new(ttl, self.grace.value).map_err(|e| blame(e, "grace", &self.grace.source))
    }

    /// Each by its name, as people see it, with where it came from; no value where it is left to the default.
    pub fn rows(&self) -> [(&'static str, Option<String>, &Source); 15] {
        let label = self.label.value.as_ref().map(ToString::to_string);
        let patterns: Vec<String> = self.metrics_leases.value.iter().map(ToString::to_string).collect();
        let patterns = (!patterns.is_empty()).then(|| patterns.join(","));
        let state = self.state_folder(false).ok().flatten().map(|folder| folder.display().to_string());
        let output = match &self.output.value {
            Some(target) => Some(target.to_string()),
            None => self.keeping().ok().flatten().map(|keeping| keeping.root.display().to_string()),
        };
        [
            ("store", Some(self.store.value.to_string()), &self.store.source),
            ("ttl", Some(self.ttl.value.to_string()), &self.ttl.source),
            ("label", label, &self.label.source),
            ("grace", self.grace.value.map(format_duration), &self.grace.source),
            ("held_exit_code", Some(self.held_exit_code.value.to_string()), &self.held_exit_code.source),
            ("state", state, &self.state.source),
            ("history_transfers", Some(self.history_transfers.value.to_string()), &self.history_transfers.source),
            ("history_age", self.history_age.value.map(format_duration), &self.history_age.source),
            ("log", self.log.value.as_ref().map(ToString::to_string), &self.log.source),
            ("log_format", Some(self.log_format.value.to_string()), &self.log_format.source),
            ("metrics", self.metrics.value.map(|address| address.to_string()), &self.metrics.source),
            ("metrics_leases", patterns, &self.metrics_leases.source),
            ("output", output, &self.output.source),
            ("output_size", Some(self.output_size.value.to_string()), &self.output_size.source),
            ("output_runs", Some(self.output_runs.value.to_string()), &self.output_runs.source),
        ]
    }
}

/// The store that the context of a run names: before the environment if the command line names the context, and after it
/// otherwise.
fn store_of_run(common: &Common) -> Result<Option<StoreUrl>> {
    if common.store.is_some() || common.context.is_none() && environment("LEASEHOLD_STORE")?.is_some() {
        return Ok(None);
    }
    RunContext::named(common.context.as_deref())?.map(|(context, _)| context.store()).transpose()
}

/// The store of this URL, relative to where it is written.
fn store_at(text: &str, source: &Source) -> Result<StoreUrl> {
    if text.starts_with("spool:") {
        let form = format!("a spool has items, not leases: `leasehold queue ls {}`", printable(text));
        return Err(Error::invalid("store url", text, form));
    }
    StoreUrl::parse_in(source.folder(), text)
}

/// The store of this user, where no other is named.
fn own_store() -> Result<Setting<StoreUrl>> {
    StoreUrl::user_default().map(default).map_err(|error| {
        // The forms of a URL are no help to who has named none.
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        let message = "cannot tell where this user's own store is; give --store or LEASEHOLD_STORE";
        Error::new(Kind::Unsupported, message).with_source(cause)
    })
}

/// A folder, from where its text is.
fn state_folder(text: &str, source: &Source) -> Result<PathBuf> {
    std::path::absolute(source.folder().unwrap_or(Path::new("")).join(text))
        .map_err(|_| Error::invalid("folder", text, "use the path of a folder"))
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
        let file = file.map(|path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf()));
        for path in [file.or_else(project_file), user_file()].into_iter().flatten() {
            if files.iter().all(|(known, _)| *known != path)
                && let Some(file) = read_file(&path)?
            {
                files.push((path, file));
            }
        }
        Ok(Files(files))
    }

    /// The tables of this kind in the nearest file that has any, and that file.
    fn tables(&self, of: impl Fn(&File) -> &RawTables) -> (RawTables, PathBuf) {
        let found = self.0.iter().find(|(_, file)| !of(file).is_none());
        found.map(|(path, file)| (of(file).clone(), path.clone())).unwrap_or_default()
    }

    /// The flag, or else the variable, or else what the nearest file says that says something.
    fn pick<T>(
        &self,
        flag: &Option<String>,
        field: &str,
        variable: &'static str,
        in_file: impl Fn(&File) -> Option<String>,
        parse: impl Fn(&str, &Source) -> Result<T>,
    ) -> Result<Option<Setting<T>>> {
        let in_files = || self.0.iter().find_map(|(path, file)| Some((in_file(file)?, Source::File(path.clone()))));
        let found = match flag {
            Some(text) => Some((text.clone(), Source::Flag)),
            None => environment(variable)?.map(|text| (text, Source::Environment(variable))).or_else(in_files),
        };
        let Some((text, source)) = found else { return Ok(None) };
        let value = parse(&text, &source).map_err(|e| blame(e, field, &source))?;
        Ok(Some(Setting { value, source }))
    }
}

/// What the flag says, or else the variable, parsed.
pub fn flag_or_variable<T>(
    flag: &Option<String>,
    field: &str,
    variable: &'static str,
    parse: impl Fn(&str) -> Result<T>,
) -> Result<Option<T>> {
    let no_files = Files(Vec::new());
    let found = no_files.pick(flag, field, variable, |_| None, |text, _| parse(text))?;
    Ok(found.map(|setting| setting.value))
}

/// What a variable says; an empty one is how people unset it for a single command.
fn environment(variable: &str) -> Result<Option<String>> {
    match std::env::var(variable) {
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(Error::new(Kind::Invalid, format!("environment variable {variable} is not text")))
        }
        text => match text.ok().filter(|text| !text.is_empty() && !is_unexpanded(text, variable)) {
            None if SECRETS.contains(&variable) => secret::in_file_of(variable),
            text => Ok(text),
        },
    }
}

/// Whether a host has left its own `$NAME` or `${NAME}` in place of a variable that it does not have.
pub fn is_unexpanded(text: &str, variable: &str) -> bool {
    let name = text.strip_prefix('$').map(|rest| rest.trim_start_matches('{').trim_start_matches("env:"));
    name.and_then(|name| name.strip_prefix(variable))
        .is_some_and(|rest| rest.trim_end_matches('}').trim_end_matches(":-").is_empty())
}

/// What a variable that is no setting says, parsed.
pub fn variable<T>(name: &'static str, field: &str, parse: impl Fn(&str) -> Result<T>) -> Result<Option<T>> {
    let text = environment(name)?;
    text.map(|text| parse(&text)).transpose().map_err(|e| blame(e, field, &Source::Environment(name)))
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

/// Larger settings are a mistake, or somebody's trap.
const MAX_SETTINGS: u64 = 1024 * 1024;

fn read_bounded(path: &Path) -> std::io::Result<String> {
    let file = std::fs::File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is not a plain file"));
    }
    let mut text = String::new();
    file.take(MAX_SETTINGS + 1).read_to_string(&mut text)?;
    match text.len() as u64 > MAX_SETTINGS {
        true => Err(std::io::Error::other(format!("it has more than {MAX_SETTINGS} bytes"))),
        false => Ok(text),
    }
}

fn read_file(path: &Path) -> Result<Option<File>> {
    let text = match read_bounded(path) {
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
    parse_toml(&text, "settings", path).map(Some)
}
