//! A job: the checked contents of a `[[job]]` table.
//!
//! Promise: every field is parsed once, here; an error names the job, the field, its value and the allowed form.
//! Non-promise: it does not check that the command exists; that shows when it is run.

use crate::schedule::due::CatchUp;
use crate::schedule::slots::{Schedule, Zone};
use leasehold_core::secret::WebUrl;
use leasehold_core::{
    Error, Kind, LeaseName, MAX_NAME_BYTES, Result, Slot, Timestamp, Ttl, format_duration, parse_duration,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// The last folder in the names of leases under which backfills claim slots.
const BACKFILL: &str = "backfill";
/// A slot that has not started after this long is late, unless the job says otherwise.
pub(super) const LATE_AFTER: Duration = Duration::from_secs(300);

/// A table as it was written.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobTable {
    name: Option<String>,
    cron: Option<String>,
    every: Option<String>,
    tz: Option<String>,
    dst: Option<String>,
    dst_fold: Option<String>,
    command: Option<String>,
    argv: Option<Vec<String>>,
    ttl: Option<String>,
    grace: Option<String>,
    busy: Option<String>,
    catch_up: Option<i64>,
    catch_up_max_age: Option<String>,
    jitter: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    env_file: Option<OneOrMany>,
    cwd: Option<PathBuf>,
    #[serde(default)]
    guards: Vec<String>,
    retries: Option<i64>,
    backoff: Option<String>,
    timeout: Option<String>,
    progress_timeout: Option<String>,
    on: Option<OneOrMany>,
    ping: Option<SecretText>,
    late_after: Option<String>,
}

/// A text that must not appear in a log.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
struct SecretText(String);

impl std::fmt::Debug for SecretText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// What to do while an earlier run has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Busy {
    /// Skip the slot.
    Skip,
    /// Wait for its end, at most this long.
    Wait(Duration),
    /// Check once more after this long.
    Retry(Duration),
}

/// A job, as a scheduler runs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its name, which is also its lease's.
    pub name: LeaseName,
    /// When it is due.
    pub schedule: Schedule,
    /// The schedule as it was written.
    pub timing: Timing,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// How long the lease lasts unless renewed; none means the scheduler's own TTL.
    pub ttl: Option<Ttl>,
    /// The time between SIGTERM and SIGKILL.
    pub grace: Option<Duration>,
    /// What to do while an earlier run has not ended.
    pub busy: Busy,
    /// How many missed slots are caught up on.
    pub catch_up: CatchUp,
    /// Each slot's start is delayed by up to this much, by the same time on every machine.
    pub jitter: Duration,
    /// Variables for the command.
    pub env: BTreeMap<String, String>,
    /// Files of variables, read at each start; `env` takes precedence.
    pub env_file: Vec<PathBuf>,
    /// The working folder; none means the folder of the file with the job.
    pub cwd: Option<PathBuf>,
    /// Resources that are sealed, so that older runs cannot write to them.
    pub guards: Vec<String>,
    /// How often a failed run is retried.
    pub retries: u32,
    /// How long to wait before the first retry. It doubles with each further one.
    pub backoff: Duration,
    /// The longest it may run.
    pub timeout: Option<Duration>,
    /// The longest it may run without progress.
    pub progress_timeout: Option<Duration>,
    /// The labels of machines that run it; any machine if empty.
    pub on: Vec<String>,
    /// The URL that is notified when a run starts and how it ended.
    pub ping: Option<WebUrl>,
    /// A slot that has not started after this long is late.
    pub late_after: Duration,
}

/// When a job is due, as it was written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cron: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    every: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tz: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dst: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dst_fold: Option<String>,
}

impl Timing {
    /// The timing of a cron line and its options, as they were written.
    pub fn of_line(line: &str, tz: Option<String>, dst: Option<String>, dst_fold: Option<String>) -> Self {
        Timing { cron: Some(line.to_owned()), every: None, tz, dst, dst_fold }
    }

    /// The parsed schedule.
    pub fn schedule(&self) -> Result<Schedule> {
        let zone = self.tz.as_deref().map_or(Ok(Zone::UTC), |tz| field("tz", tz.parse()))?;
        let gap = field("dst", self.dst.as_deref().map(str::parse).transpose())?;
        let fold = field("dst_fold", self.dst_fold.as_deref().map(str::parse).transpose())?;
        match (&self.cron, &self.every) {
            (Some(line), None) => field("cron", Schedule::new(line, zone, gap, fold)),
            (None, Some(every)) => {
                if self.tz.is_some() || gap.is_some() || fold.is_some() {
                    let what = "it is counted in elapsed time: `tz`, `dst` and `dst_fold` go with `cron`";
                    return Err(missing("every", what));
                }
                field("every", parse_duration(every).and_then(Schedule::every))
            }
            _ => Err(missing("cron", "give either `cron` or `every`")),
        }
    }
}

impl std::fmt::Display for Timing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words =
            [("", &self.cron), ("every ", &self.every), ("", &self.tz), ("dst ", &self.dst), ("fold ", &self.dst_fold)];
        let said: Vec<String> =
            words.iter().filter_map(|(word, text)| text.as_ref().map(|text| format!("{word}{text}"))).collect();
        f.write_str(&said.join(", "))
    }
}

impl Job {
    /// Whether a machine with these labels runs it.
    pub fn runs_on(&self, labels: &[String]) -> bool {
        self.on.is_empty() || self.on.iter().any(|label| labels.contains(label))
    }

    /// How long after its instant a slot starts. It is the same on every machine, so that none starts early.
    pub fn delay(&self, slot: Slot) -> Duration {
        slot_delay(&self.name, slot, self.jitter)
    }

    /// Reads a table. `at` is its number, for errors if it has no name.
    pub fn read(table: JobTable, at: usize) -> Result<Self> {
        let what = table.name.clone().map_or_else(|| format!("job {at}"), |name| format!("job `{name}`"));
        parse(table).map_err(|e| Error::new(e.kind(), format!("{what}: {e}")))
    }
}

/// How long after its instant a slot of this job starts, with this jitter.
pub(super) fn slot_delay(name: &LeaseName, slot: Slot, jitter: Duration) -> Duration {
    let bound = u64::try_from(jitter.as_millis()).unwrap_or(u64::MAX);
    if bound == 0 {
        return Duration::ZERO;
    }
    // FNV-1a: it never changes, which the standard hasher does not promise.
    let text = idempotency_key(name, slot);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    Duration::from_millis((hash ^ (hash >> 29)) % bound)
}

/// The key of a slot, the same for each attempt to run it: `NAME@2026-11-15T03:00:00Z`.
pub fn idempotency_key(name: &LeaseName, slot: Slot) -> String {
    format!("{name}@{}", slot_text(slot))
}

/// The lease under which a backfill claims a slot, whatever span the backfill covers.
pub fn backfill_lease(job: &LeaseName, slot: Slot) -> Result<LeaseName> {
    LeaseName::new(format!("{job}/{BACKFILL}/{}", slot_text(slot).replace(['-', ':'], "")))
}

/// Whether a lease is a backfill's. Such records are only for the next backfill, and not shown.
pub fn is_backfill(lease: &LeaseName) -> bool {
    let mut parts = lease.as_str().rsplit('/');
    let (at, folder, job) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
    let is_instant = at.len() >= 16 && at.ends_with('Z') && at.as_bytes()[8] == b'T';
    let is_digit = |c: char| c.is_ascii_digit() || matches!(c, 'T' | 'Z' | '.');
    folder == Some(BACKFILL) && job.is_some() && is_instant && at.chars().all(is_digit)
}

/// A slot as text: RFC 3339 in UTC.
pub fn slot_text(slot: Slot) -> String {
    i64::try_from(slot.0.as_millis())
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
        .map_or_else(|| format!("{}ms", slot.0.as_millis()), |at| at.to_string())
}

/// Parses a slot, or any instant.
pub fn parse_instant(field: &str, text: &str) -> Result<Slot> {
    let form = "use RFC 3339, such as 2026-11-15T03:00:00Z";
    let instant: jiff::Timestamp = text.parse().map_err(|_| Error::invalid(field, text, form))?;
    let ms = u64::try_from(instant.as_millisecond()).map_err(|_| Error::invalid(field, text, "it is before 1970"))?;
    Ok(Slot(leasehold_core::Timestamp::from_millis(ms)))
}

fn parse(table: JobTable) -> Result<Job> {
    let name = table.name.ok_or_else(|| missing("name", "give the job a name"))?;
    let timing =
        Timing { cron: table.cron, every: table.every, tz: table.tz, dst: table.dst, dst_fold: table.dst_fold };
    let schedule = timing.schedule()?;
    let argv = match (table.command, table.argv) {
        (Some(command), None) if !command.trim().is_empty() => vec!["/bin/sh".into(), "-c".into(), command],
        (None, Some(argv)) if argv.first().is_some_and(|program| !program.is_empty()) => argv,
        _ => return Err(missing("command", "give either `command`, for a shell, or `argv`, a list that is not empty")),
    };
    if argv.iter().any(|word| word.contains('\0')) {
        return Err(missing("command", "it has a NUL character"));
    }
    let jitter = duration("jitter", table.jitter.as_deref())?.unwrap_or_default();
    check_jitter(jitter, &schedule)?;
    if name.starts_with('-') {
        // As an argument of a command it would be taken for an option.
        return Err(Error::invalid("name", &name, "a job's name does not begin with `-`"));
    }
    Ok(Job {
        name: job_name(name)?,
        schedule,
        timing,
        argv,
        ttl: field("ttl", table.ttl.as_deref().map(str::parse).transpose())?,
        grace: duration("grace", table.grace.as_deref())?,
        busy: table.busy.as_deref().map_or(Ok(Busy::Skip), busy)?,
        catch_up: catch_up(table.catch_up, table.catch_up_max_age.as_deref())?,
        jitter,
        env: environment(table.env)?,
        env_file: env_files(table.env_file)?,
        cwd: table.cwd,
        guards: table.guards,
        retries: match table.retries.unwrap_or(0) {
            n @ 0..=100 => n as u32,
            n => return Err(Error::invalid("retries", n, "use 0 to 100")),
        },
        backoff: duration("backoff", table.backoff.as_deref())?.unwrap_or(Duration::from_secs(10)),
        timeout: duration("timeout", table.timeout.as_deref())?,
        progress_timeout: duration("progress_timeout", table.progress_timeout.as_deref())?,
        on: labels(table.on)?,
        late_after: duration("late_after", table.late_after.as_deref())?.unwrap_or(LATE_AFTER),
        ping: field("ping", table.ping.map(|url| url.0.parse()).transpose())?,
    })
}

/// A job's name is also the beginning of the name of each slot's own lease.
fn job_name(name: String) -> Result<LeaseName> {
    let name = LeaseName::to_hold(name)?;
    let most = MAX_NAME_BYTES - "//".len() - BACKFILL.len() - "20261115T030000Z".len();
    if name.as_str().len() <= most {
        return Ok(name);
    }
    let form = format!("use at most {most} bytes: `schedule backfill` claims each slot under `NAME/{BACKFILL}/SLOT`");
    Err(Error::invalid("name", name, form))
}

/// A start that is delayed past the next slot would be taken for that slot's.
fn check_jitter(jitter: Duration, schedule: &Schedule) -> Result<()> {
    // Enough to see every distance between the slots of nearly all lines that people write.
    const MAX_CHECKED: usize = 25;
    if jitter.is_zero() {
        return Ok(());
    }
    // The same on every machine and on every day: a file that is accepted stays valid.
    let from = Timestamp::from_millis(1_767_225_600_000);
    let slots: Vec<Slot> = schedule.between(from, Timestamp::from_millis(u64::MAX)).take(MAX_CHECKED).collect();
    let distance = slots.windows(2).map(|pair| pair[1].0.saturating_since(pair[0].0)).min().unwrap_or(Duration::MAX);
    if jitter <= distance {
        return Ok(());
    }
    let form = format!("two of its slots are {distance} apart; use that at most", distance = format_duration(distance));
    Err(Error::invalid("jitter", format_duration(jitter), form))
}

fn labels(on: Option<OneOrMany>) -> Result<Vec<String>> {
    let form = "use a label, or a list of at least one; leave it out for a job of every machine";
    let labels = match on {
        None => return Ok(Vec::new()),
        Some(OneOrMany::One(label)) => vec![label],
        Some(OneOrMany::Many(labels)) => labels,
    };
    if labels.is_empty() {
        return Err(Error::invalid("on", "[]", form));
    }
    match labels.iter().find(|label| label.trim().is_empty() || label.contains(',')) {
        // A machine's labels are a comma-separated list.
        Some(label) => Err(Error::invalid("on", label, format!("{form}; a label is not empty and has no comma"))),
        None => Ok(labels),
    }
}

fn env_files(files: Option<OneOrMany>) -> Result<Vec<PathBuf>> {
    let files = match files {
        None => Vec::new(),
        Some(OneOrMany::One(file)) => vec![file],
        Some(OneOrMany::Many(files)) => files,
    };
    match files.iter().find(|file| file.is_empty() || file.contains('\0')) {
        Some(file) => Err(Error::invalid("env_file", file, "use the path of a file, or a list of them")),
        None => Ok(files.into_iter().map(PathBuf::from).collect()),
    }
}

fn missing(field: &str, what: &str) -> Error {
    Error::new(Kind::Invalid, format!("field `{field}`: {what}"))
}

fn field<T>(name: &str, parsed: Result<T>) -> Result<T> {
    parsed.map_err(|e| Error::new(e.kind(), format!("field `{name}`: {e}")))
}

fn duration(name: &str, text: Option<&str>) -> Result<Option<Duration>> {
    field(name, text.map(parse_duration).transpose())
}

fn catch_up(count: Option<i64>, age: Option<&str>) -> Result<CatchUp> {
    let usual = CatchUp::default();
    let count = count.unwrap_or(i64::from(usual.count()));
    let age = duration("catch_up_max_age", age)?.unwrap_or(usual.max_age());
    let count =
        u32::try_from(count).map_err(|_| Error::invalid("catch_up", count, "use 1 (the newest slot only) to 1000"))?;
    CatchUp::new(count, age)
}

fn busy(text: &str) -> Result<Busy> {
    let form = "use skip, wait 10m (wait up to 10m for the earlier run to end) or retry 5m (try once more after 5m)";
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        ["skip"] => Ok(Busy::Skip),
        ["wait", limit] => Ok(Busy::Wait(field("busy", parse_duration(limit))?)),
        ["retry", pause] => Ok(Busy::Retry(field("busy", parse_duration(pause))?)),
        _ => Err(Error::invalid("busy", text, form)),
    }
}

/// Variables for the job's own output, which it may set in `env`.
const OWN_OUTPUT: [&str; 3] = ["LEASEHOLD_OUTPUT", "LEASEHOLD_OUTPUT_SIZE", "LEASEHOLD_OUTPUT_RUNS"];

fn environment(env: BTreeMap<String, String>) -> Result<BTreeMap<String, String>> {
    for (name, value) in &env {
        let form = "use a name without `=` and NUL that does not begin with LEASEHOLD_, unless with LEASEHOLD_OUTPUT";
        let is_own = name.starts_with("LEASEHOLD_") && !OWN_OUTPUT.contains(&name.as_str());
        if name.is_empty() || name.contains(['=', '\0']) || is_own {
            return Err(Error::invalid("env", name, form));
        }
        if value.contains('\0') {
            return Err(Error::invalid("env", name, "its value has a NUL character"));
        }
    }
    Ok(env)
}

impl std::fmt::Display for Busy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Busy::Skip => f.write_str("skip"),
            Busy::Wait(limit) => write!(f, "wait {}", format_duration(*limit)),
            Busy::Retry(pause) => write!(f, "retry {}", format_duration(*pause)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jobs_name_leaves_room_for_its_slots() {
        let named = |bytes: usize| {
            let (every, command) = (Some("1h".to_owned()), Some("true".to_owned()));
            Job::read(JobTable { name: Some("n".repeat(bytes)), every, command, ..JobTable::default() }, 1)
        };
        let slot = parse_instant("slot", "2026-11-15T03:00:00Z").unwrap();
        assert!(backfill_lease(&named(174).unwrap().name, slot).is_ok());
        let refused = named(175).unwrap_err().to_string();
        assert!(refused.contains("use at most 174 bytes"), "{refused}");
    }

    #[test]
    fn a_backfills_lease_is_known_by_its_name_and_no_other_is() {
        let job: LeaseName = "team/nightly".parse().unwrap();
        let slot = parse_instant("slot", "2026-11-15T03:00:00Z").unwrap();
        assert!(is_backfill(&backfill_lease(&job, slot).unwrap()));
        for name in [
            "team/nightly",
            "backfill/20261115T030000Z",
            "a/backfill/nightly",
            "a/backfill/2026",
            "a/b/20261115T030000Z",
        ] {
            assert!(!is_backfill(&name.parse().unwrap()), "{name}");
        }
    }
}
