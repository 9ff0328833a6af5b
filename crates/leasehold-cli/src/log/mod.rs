//! What goes to standard error: one line for each event, as text for people or as JSON for machines.
//!
//! Promise: a line is written in one piece, and names what it is about in its message; the fields say the same to machines.
//! Without `--log` the events of drivers are never shown: they may hold what is secret. Lines of verbs that run for long say
//! when they were written, unless a terminal or the journal shows them. Non-promise: a line that standard error does not take,
//! or not in time, is dropped.

mod stderr;
mod subject;

pub use stderr::finish;
pub use subject::{Subject, about, refine, subject};

use crate::args::{Cli, Common, ScheduleVerb, Verb};
use crate::config::{self, Settings};
use leasehold_core::{Error, Result};
use serde_json::Value;
use std::fmt;
use std::io::IsTerminal;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The target of what a command says to the user who started it.
pub const SAY: &str = "leasehold::say";
/// The target of starts and ends of runs: `schedule` and `work` tell them, and a `run` by hand only if it is asked to.
pub const RUNS: &str = "leasehold::runs";
/// Every target of our own begins so.
const OWN: &str = "leasehold";
pub const LEVELS_VARIABLE: &str = "LEASEHOLD_LOG";
pub const FORMAT_VARIABLE: &str = "LEASEHOLD_LOG_FORMAT";

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Text,
    Json,
}

impl std::str::FromStr for Format {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "text" => Ok(Format::Text),
            "json" => Ok(Format::Json),
            _ => Err(Error::invalid("log format", text, "use `text` or `json`")),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Format::Json { "json" } else { "text" })
    }
}

/// From which level on events are shown, by their target: the longest beginning of it that is named here decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Levels(Vec<(String, LevelFilter)>);

impl Levels {
    const fn none() -> Self {
        Levels(Vec::new())
    }

    fn of(levels: &[(&str, LevelFilter)]) -> Self {
        Levels(levels.iter().map(|(target, level)| ((*target).to_owned(), *level)).collect())
    }

    /// What a verb shows unless it is said.
    fn usual(verb: &Verb) -> Self {
        if !runs_for_long(verb) {
            return Levels::by_hand();
        }
        let is_quiet = match verb {
            Verb::Schedule(args) => match &args.verb {
                Some(ScheduleVerb::Run(run)) => run.quiet,
                _ => args.run.quiet,
            },
            _ => false,
        };
        let level = if is_quiet { LevelFilter::WARN } else { LevelFilter::INFO };
        Levels::of(&[(OWN, level), (SAY, LevelFilter::INFO)])
    }

    /// What a command for one thing shows: its own words and warnings, and not that what it was to run has run.
    fn by_hand() -> Self {
        Levels::of(&[(OWN, LevelFilter::WARN), (SAY, LevelFilter::INFO), (RUNS, LevelFilter::OFF)])
    }

    fn of_target(&self, target: &str) -> LevelFilter {
        let named = self.0.iter().filter(|(prefix, _)| target.starts_with(prefix.as_str()));
        named.max_by_key(|(prefix, _)| prefix.len()).map_or(LevelFilter::OFF, |(_, level)| *level)
    }
}

impl std::str::FromStr for Levels {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut levels = Vec::new();
        for part in text.split(',') {
            let (target, level) = part.split_once('=').unwrap_or((OWN, part));
            let level = match level {
                "off" => LevelFilter::OFF,
                "error" => LevelFilter::ERROR,
                "warn" => LevelFilter::WARN,
                "info" => LevelFilter::INFO,
                "debug" => LevelFilter::DEBUG,
                "trace" => LevelFilter::TRACE,
                _ => return Err(wrong_levels(text)),
            };
            if target.is_empty() {
                return Err(wrong_levels(text));
            }
            levels.push((target.to_owned(), level));
        }
        Ok(Levels(levels))
    }
}

fn wrong_levels(text: &str) -> Error {
    let form = "use off, error, warn, info, debug or trace; for the events of a library add LIBRARY=LEVEL after a comma, such as \
                `info,hyper=debug`";
    Error::invalid("log level", text, form)
}

impl fmt::Display for Levels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (target, level)) in self.0.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match target.as_str() {
                OWN => write!(f, "{comma}{level}")?,
                target => write!(f, "{comma}{target}={level}")?,
            }
        }
        Ok(())
    }
}

/// Whether the verb runs until it gets a signal.
fn runs_for_long(verb: &Verb) -> bool {
    match verb {
        Verb::Schedule(args) => matches!(args.verb, None | Some(ScheduleVerb::Run(_))),
        Verb::Work(_) => true,
        #[cfg(feature = "http")]
        Verb::Proxy(_) => true,
        #[cfg(feature = "server")]
        Verb::Serve(_) => true,
        _ => false,
    }
}

/// Whether the process writes into a long-lived log, as the runs of a scheduler do.
fn is_long_log(verb: &Verb) -> bool {
    runs_for_long(verb) || matches!(verb, Verb::Run(args) if args.slot.adopt)
}

/// Whether lines need no times: standard error is a terminal, or the journal, which adds its own. systemd says
/// in `JOURNAL_STREAM` which file the journal reads, as its device and inode.
fn needs_no_times() -> bool {
    let stderr = std::io::stderr();
    if stderr.is_terminal() {
        return true;
    }
    let journal = std::env::var("JOURNAL_STREAM").ok();
    journal.is_some_and(|journal| {
        rustix::fs::fstat(&stderr).is_ok_and(|file| journal == format!("{}:{}", file.st_dev, file.st_ino))
    })
}

static LEVELS: RwLock<Levels> = RwLock::new(Levels::none());
static JSON: AtomicBool = AtomicBool::new(false);
/// Whether text lines begin with the time and the level.
static TIMED: AtomicBool = AtomicBool::new(false);

/// Begins to log as flags and environment say. What a file says is known later: see [`follow`].
pub fn install(cli: &Cli) -> Result<()> {
    let Common { log, log_format, .. } = &cli.common;
    set_levels(Levels::usual(&cli.verb));
    TIMED.store(is_long_log(&cli.verb) && !needs_no_times(), Ordering::Relaxed);
    begin();
    if let Some(format) = config::flag_or_variable(log_format, "log_format", FORMAT_VARIABLE, str::parse::<Format>)? {
        JSON.store(format == Format::Json, Ordering::Relaxed);
    }
    if let Some(levels) = config::flag_or_variable(log, "log", LEVELS_VARIABLE, str::parse)? {
        set_levels(levels);
    }
    Ok(())
}

/// Begins to log for those who have no command line that could be read: as the environment says, or as these words would
/// have said.
pub fn install_for(words: &[std::ffi::OsString]) {
    set_levels(Levels::by_hand());
    begin();
    let ours: Vec<_> = words.iter().take_while(|word| *word != "--").collect();
    let flag = ours.windows(2).rfind(|pair| pair[0] == "--log-format").map(|pair| pair[1] == "json");
    let flag =
        flag.or_else(|| ours.iter().find_map(|word| word.to_str()?.strip_prefix("--log-format=")).map(|f| f == "json"));
    let is_json = flag.unwrap_or_else(|| std::env::var_os(FORMAT_VARIABLE).is_some_and(|word| word == "json"));
    JSON.store(is_json, Ordering::Relaxed);
}

/// Logs from now on as the settings say, files among them.
pub fn follow(settings: &Settings) {
    if let Some(levels) = &settings.log.value {
        set_levels(levels.clone());
    }
    JSON.store(settings.log_format.value == Format::Json, Ordering::Relaxed);
}

/// How lines look now.
pub fn format() -> Format {
    if JSON.load(Ordering::Relaxed) { Format::Json } else { Format::Text }
}

/// Has another process of ours, and what it starts, write lines of the same form.
pub fn hand_down_format(command: &mut Command) {
    let is_json = format() == Format::Json;
    if is_json || std::env::var_os(FORMAT_VARIABLE).is_some() {
        command.env(FORMAT_VARIABLE, format().to_string());
    }
}

/// Has another process of ours show what this one does. To be called among its flags. What it starts is not told.
pub fn hand_down(command: &mut Command) {
    hand_down_format(command);
    command.arg(format!("--log={}", LEVELS.read().unwrap_or_else(PoisonError::into_inner)));
}

fn set_levels(levels: Levels) {
    *LEVELS.write().unwrap_or_else(PoisonError::into_inner) = levels;
    tracing::callsite::rebuild_interest_cache();
}

fn begin() {
    // Fails only if it was done before.
    let _ = tracing::subscriber::set_global_default(Lines);
}

/// Writes each event as a line.
struct Lines;

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let levels = LEVELS.read().unwrap_or_else(PoisonError::into_inner);
        metadata.is_event() && *metadata.level() <= levels.of_target(metadata.target())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let levels = LEVELS.read().unwrap_or_else(PoisonError::into_inner);
        levels.0.iter().map(|(_, level)| *level).max()
    }

    fn event(&self, event: &Event<'_>) {
        let mut said = Said::default();
        event.record(&mut said);
        let subject = subject::of_line(&said.fields);
        let line = match format() {
            Format::Text => format!("{}{}", stamp(event.metadata().level()), said.text(subject.as_ref())),
            Format::Json => said.json(subject, event.metadata()),
        };
        crate::bar::aside(|| stderr::write(line.as_bytes()));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// What a text line begins with: nothing, or the time and the level.
fn stamp(level: &Level) -> String {
    if TIMED.load(Ordering::Relaxed) { format!("{} {} ", wall_time(), word(level)) } else { String::new() }
}

fn word(level: &Level) -> &'static str {
    match *level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

/// The line that says how many were dropped.
fn dropped(count: u64) -> String {
    let message = format!("{count} lines were dropped here: standard error was not read");
    match format() {
        Format::Text => format!("{}leasehold: {message}\n", stamp(&Level::WARN)),
        Format::Json => {
            let (time, message) = (wall_time(), Value::from(message));
            format!("{{\"time\":\"{time}\",\"level\":\"warn\",\"message\":{message}}}\n")
        }
    }
}

/// What an event says.
#[derive(Default)]
struct Said {
    message: String,
    fields: Vec<(&'static str, Value)>,
}

impl Said {
    /// In one line: a path may hold a line break, or what a terminal takes for an order.
    fn text(&self, subject: Option<&Subject>) -> String {
        let mut line = String::with_capacity(self.message.len() + 16);
        let prefix = subject.and_then(|subject| subject.prefix(&self.message)).unwrap_or_default();
        line.push_str("leasehold: ");
        for c in prefix.chars().chain(self.message.chars()) {
            if c.is_control() { line.extend(c.escape_debug()) } else { line.push(c) }
        }
        line.push('\n');
        line
    }

    fn json(self, subject: Option<Subject>, metadata: &Metadata<'_>) -> String {
        let level = word(metadata.level());
        let mut line = format!("{{\"time\":\"{}\",\"level\":\"{level}\"", wall_time());
        // Whose it is, if not ours.
        let target = metadata.target();
        let foreign = (!target.starts_with(OWN)).then(|| ("target", Value::from(target)));
        let known: Vec<_> = self.fields.iter().map(|(name, _)| *name).collect();
        let prefix = subject.as_ref().and_then(|subject| subject.prefix(&self.message)).unwrap_or_default();
        let about = subject.into_iter().flat_map(Subject::fields).filter(|(name, _)| !known.contains(name));
        let message = std::iter::once(("message", Value::from(prefix + &self.message)));
        for (name, value) in message.chain(about).chain(self.fields).chain(foreign) {
            line.push_str(&format!(",\"{name}\":{value}"));
        }
        line.push_str("}\n");
        line
    }

    fn add(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            (name, value) => self.fields.push((name, value)),
        }
    }
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }
}

/// This machine's time, to the millisecond.
fn wall_time() -> String {
    let now = i64::try_from(leasehold_system::clock::wall_ms()).unwrap_or_default();
    jiff::Timestamp::from_millisecond(now).map_or_else(|_| String::new(), |now| format!("{now:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_target_that_is_named_decides() {
        let levels: Levels = "warn,leasehold::runs=off,hyper=debug".parse().unwrap();
        assert_eq!(levels.of_target("leasehold_core::keeper"), LevelFilter::WARN);
        assert_eq!(levels.of_target("leasehold::runs"), LevelFilter::OFF);
        assert_eq!(levels.of_target("hyper::client"), LevelFilter::DEBUG);
        assert_eq!(levels.of_target("h2"), LevelFilter::OFF);
        assert_eq!(levels.to_string(), "warn,leasehold::runs=off,hyper=debug");
        for levels in [Levels::by_hand(), levels] {
            assert_eq!(levels.to_string().parse::<Levels>().unwrap(), levels);
        }
    }

    #[test]
    fn a_level_that_is_none_is_refused() {
        for wrong in ["", "inof", "info,", "=info", "hyper=", "INFO", "hyper"] {
            let error = wrong.parse::<Levels>().unwrap_err().to_string();
            assert!(error.contains(&format!("invalid log level `{wrong}`: use off, error")), "{error}");
        }
    }

    #[test]
    fn a_text_line_is_one_line() {
        let said = Said { message: "a\nb\u{1b}[1m".into(), fields: Vec::new() };
        assert_eq!(said.text(None), "leasehold: a\\nb\\u{1b}[1m\n");
    }
}
