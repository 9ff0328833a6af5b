//! systemd timers: when, from the timer; what, from its service.

use super::calendar::cron_of;
use super::table::{Command, Imported, Tables, quoted, shown};
use super::unit::{Setting, Unit, commands, span, words};
use super::{current_user, home_of};
use leasehold_core::{Error, Kind, Result, format_duration};
use leasehold_work::schedule::env_file;
use std::path::Path;
use std::time::Duration;

/// Keys that need not be carried over: they say nothing of what is run, or when.
const SILENT: [&str; 13] = [
    "Description",
    "Documentation",
    "After",
    "Before",
    "Wants",
    "WantedBy",
    "Also",
    "Alias",
    "Unit",
    "SyslogIdentifier",
    "RemainAfterExit",
    "DefaultDependencies",
    "RefuseManualStart",
];
/// Keys that say nothing of it either with one of these values.
const SILENT_VALUES: [(&str, &[&str]); 3] = [
    ("StandardOutput", &["", "inherit", "journal", "null"]),
    ("StandardError", &["", "inherit", "journal", "null"]),
    ("KillMode", &["", "control-group", "mixed"]),
];
const CARRIED: [&str; 13] = [
    "OnCalendar",
    "OnUnitActiveSec",
    "Persistent",
    "RandomizedDelaySec",
    "ExecStart",
    "User",
    "Environment",
    "EnvironmentFile",
    "WorkingDirectory",
    "RuntimeMaxSec",
    "TimeoutStartSec",
    "TimeoutSec",
    "Type",
];

pub fn import(path: &Path, tables: &mut Tables) -> Result<()> {
    let location = path.display().to_string();
    tables.begin(&location);
    let timer = Unit::read(path)?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let service_name = timer.last("Timer", "Unit").map_or_else(|| format!("{stem}.service"), |unit| unit.value.clone());
    let service_path = path.with_file_name(&service_name);
    let service = Unit::read(&service_path).map_err(|e| {
        let message = format!("`{location}` starts `{service_name}`, which is not beside it; put both into one folder");
        Error::new(Kind::Invalid, message).with_source(e)
    })?;
    let is_user = path.components().any(|part| part.as_os_str() == "user")
        || home_of(None).is_some_and(|home| path.starts_with(home));
    // Of the service manager: the system's is root, whatever User= says.
    let home = home_of((!is_user).then_some("root"));
    let mut job = Imported { called: stem, ..Imported::default() };
    let Some(command) = command(&service, &service_path, home.as_deref(), tables) else { return Ok(()) };
    job.command = command;
    user(&service, is_user, tables);
    environment(&service, &mut job, home.as_deref(), tables);
    match cwd(&service, is_user, home.as_deref()) {
        Ok(cwd) => job.cwd = cwd,
        // Elsewhere the command might do something else.
        Err(setting) => {
            let what = format!("not carried over: WorkingDirectory={} has unknown specifiers", shown(&setting.value));
            tables.notice(&setting.location, &what);
            return Ok(());
        }
    }
    limits(&timer, &service, &mut job, tables);
    let is_left =
        |setting: &&Setting| !SILENT.contains(&setting.key.as_str()) && !CARRIED.contains(&setting.key.as_str());
    let monotonic =
        ["OnBootSec", "OnStartupSec", "OnActiveSec", "OnUnitInactiveSec", "OnClockChange", "OnTimezoneChange"];
    for section in ["Unit", "Timer", "Install"] {
        for setting in timer.section(section).filter(is_left) {
            let why = match setting.key.as_str() {
                "AccuracySec" => ": a job starts at its time, or as much later as `jitter` says",
                "FixedRandomDelay" => ": `jitter` is the same on every machine, and another one for each slot",
                key if monotonic.contains(&key) => ": it is not a time of the clock",
                _ => "",
            };
            tables.notice(&setting.location, &format!("{}= is not carried over{why}", setting.key));
        }
    }
    for setting in ["Unit", "Service", "Install"].iter().flat_map(|section| service.section(section)).filter(is_left) {
        let why = match (setting.key.as_str(), setting.value.as_str()) {
            (key, value) if SILENT_VALUES.iter().any(|(known, values)| *known == key && values.contains(&value)) => {
                continue;
            }
            ("StandardOutput" | "StandardError", _) => ": output is kept, `leasehold logs` shows it",
            ("KillMode", _) => ": a run has ended when no process of it is left",
            _ => "",
        };
        tables.notice(&setting.location, &format!("{}= is not carried over{why}", setting.key));
    }
    schedules(&timer, &job, &location, tables);
    Ok(())
}

/// One job for each time that the timer names.
fn schedules(timer: &Unit, job: &Imported, location: &str, tables: &mut Tables) {
    let calendars = timer.all("Timer", "OnCalendar");
    let repeats = timer.all("Timer", "OnUnitActiveSec");
    if calendars.len() + repeats.len() > 1 {
        tables.notice(
            location,
            "it has several times, which become several jobs: these may overlap, as the timer's did not",
        );
    }
    if calendars.is_empty() && repeats.is_empty() {
        tables.notice(location, "not carried over: it has no OnCalendar=");
    }
    for setting in calendars {
        match cron_of(&setting.value) {
            Ok(line) => {
                let zone = line.zone.unwrap_or_else(|| tables.zone.clone());
                tables.add(
                    &Imported { schedule: ("cron", line.cron), zone: Some(zone), ..job.clone() },
                    &setting.location,
                );
            }
            Err(why) => {
                let what = format!("OnCalendar={} is not carried over: {why}", shown(&setting.value));
                tables.notice(&setting.location, &what);
            }
        }
    }
    for setting in repeats {
        let Some(every) = span(&setting.value) else {
            tables.notice(&setting.location, &format!("OnUnitActiveSec={} is not carried over", shown(&setting.value)));
            continue;
        };
        tables.notice(
            &setting.location,
            "OnUnitActiveSec= becomes `every`, which counts from 1970 and not from the last start",
        );
        tables.add(&Imported { schedule: ("every", format_duration(every)), ..job.clone() }, &setting.location);
    }
}

/// What is run: the words, or a line for a shell where variables stand in it or several commands follow one another.
fn command(service: &Unit, path: &Path, home: Option<&str>, tables: &mut Tables) -> Option<Command> {
    let starts = service.all("Service", "ExecStart");
    if starts.is_empty() {
        tables.notice(&path.display().to_string(), "not carried over: it has no ExecStart=");
        return None;
    }
    let mut lines = Vec::new();
    let all = starts.iter().flat_map(|start| commands(&start.value).into_iter().map(move |command| (start, command)));
    for (start, command) in all {
        let text = command.trim_start_matches(['-', '@', ':', '+', '!']);
        let prefix = &command[..command.len() - text.len()];
        let Some(mut words) =
            words(text).and_then(|words| words.iter().map(|word| specifiers(word, home)).collect::<Option<Vec<_>>>())
        else {
            let what = format!("not carried over: ExecStart={} has quotes, escapes or specifiers", shown(&start.value));
            tables.notice(&start.location, &what);
            return None;
        };
        if !prefix.is_empty() {
            tables.notice(&start.location, &format!("the prefix `{prefix}` of ExecStart= is not carried over"));
        }
        if prefix.contains('@') && words.len() > 1 {
            let what =
                format!("the program is not told that it is called {}, it is called by its path", shown(&words[1]));
            tables.notice(&start.location, &what);
            words.remove(1);
        }
        lines.push(words);
    }
    if starts.len() > 1 {
        let what = "several ExecStart= become one line for a shell, which ends at the first that fails";
        tables.notice(&path.display().to_string(), what);
    } else if lines.len() > 1 {
        let what = "the commands of ExecStart= become one line for a shell, which ends at the first that fails";
        tables.notice(&path.display().to_string(), what);
    }
    let kind = service.last("Service", "Type");
    if let Some(kind) = kind.filter(|kind| !matches!(kind.value.as_str(), "simple" | "exec" | "oneshot")) {
        let what = format!("Type={} is not carried over: a job is over when its command ends", shown(&kind.value));
        tables.notice(&kind.location, &what);
    }
    let has_variable = lines.iter().flatten().any(|word| word.contains('$'));
    if let ([words], false) = (&lines[..], has_variable) {
        return Some(Command::Words(words.clone()));
    }
    let line = |words: &Vec<String>| words.iter().map(|word| in_shell(word)).collect::<Vec<_>>().join(" ");
    Some(Command::Line(lines.iter().map(line).collect::<Vec<_>>().join(" && ")))
}

/// A word with its specifiers put in, as far as they are known here.
fn specifiers(word: &str, home: Option<&str>) -> Option<String> {
    let mut text = String::new();
    let mut letters = word.chars();
    while let Some(c) = letters.next() {
        match c {
            '%' => match letters.next()? {
                '%' => text.push('%'),
                'h' => text.push_str(home?),
                _ => return None,
            },
            c => text.push(c),
        }
    }
    Some(text)
}

/// A word for a shell, in which only variables are variables.
fn in_shell(word: &str) -> String {
    // `$$` is a dollar sign, and a variable that is a word of its own is split into words.
    if let Some(name) = word.strip_prefix('$').filter(|name| is_name(name)) {
        return format!("${name}");
    }
    let mut text = String::from("\"");
    let mut rest = word;
    while let Some(c) = rest.chars().next() {
        let braced = rest.strip_prefix("${").and_then(|inner| inner.split_once('}')).filter(|(name, _)| is_name(name));
        if let Some((name, behind)) = braced {
            text.push_str(&format!("${{{name}}}"));
            rest = behind;
        } else if let Some(behind) = rest.strip_prefix("$$") {
            text.push_str("\\$");
            rest = behind;
        } else {
            if matches!(c, '"' | '\\' | '$' | '`') {
                text.push('\\');
            }
            text.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    text.push('"');
    text
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn user(service: &Unit, is_user: bool, tables: &mut Tables) {
    let user = service.last("Service", "User");
    let name = user.map_or("root", |setting| setting.value.as_str());
    if name != current_user() && (user.is_some() || !is_user) {
        let location = user.map_or_else(|| "the service".to_owned(), |setting| setting.location.clone());
        tables.notice(&location, &format!("it ran as `{}`: here jobs run as the user of the scheduler", shown(name)));
    }
}

fn environment(service: &Unit, job: &mut Imported, home: Option<&str>, tables: &mut Tables) {
    for setting in service.all("Service", "Environment") {
        let Some(pairs) = words(&setting.value) else {
            let what = "Environment= is not carried over: it has an open quote or an unknown escape";
            tables.notice(&setting.location, what);
            continue;
        };
        for pair in pairs {
            let carried = specifiers(&pair, home);
            match carried.as_deref().and_then(|pair| pair.split_once('=')) {
                Some((name, value)) if !name.starts_with("LEASEHOLD_") => {
                    job.env.insert(name.to_owned(), value.to_owned());
                }
                _ => tables.notice(&setting.location, "a part of Environment= is not carried over"),
            }
        }
    }
    environment_files(service, job, home, tables);
}

/// There the files take precedence over `Environment=`, and here `env` over `env_file`: what a file sets is left out of `env`.
fn environment_files(service: &Unit, job: &mut Imported, home: Option<&str>, tables: &mut Tables) {
    for setting in service.all("Service", "EnvironmentFile") {
        let path = setting.value.trim_start_matches('-');
        if path != setting.value {
            tables.notice(
                &setting.location,
                "EnvironmentFile= may be missing there; here a missing `env_file` is an error",
            );
        }
        match specifiers(path, home) {
            Some(path) => {
                overridden(setting, &path, job, tables);
                job.env_file.push(path);
            }
            None => tables.notice(&setting.location, "EnvironmentFile= is not carried over: it has unknown specifiers"),
        }
    }
}

/// Leaves out of `env` what this file sets now, or says that it may set it.
fn overridden(setting: &Setting, path: &str, job: &mut Imported, tables: &mut Tables) {
    if job.env.is_empty() {
        return;
    }
    // A pipe would be waited for.
    let is_file = std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    let text = is_file.then(|| super::read(Path::new(path)).ok()).flatten();
    let Some(set) = text.and_then(|text| env_file::parse(&text).ok()) else {
        let names = job.env.keys().map(|name| shown(name)).collect::<Vec<_>>().join(", ");
        let what = format!(
            "EnvironmentFile= takes precedence over Environment= there, and here `env` over `env_file`: the file cannot be read \
             now; take out of `env` what it sets of {names}"
        );
        return tables.notice(&setting.location, &what);
    };
    for (name, _) in set {
        if job.env.remove(&name).is_some() {
            let what = format!("{} of Environment= is left out: the file of EnvironmentFile= sets it", shown(&name));
            tables.notice(&setting.location, &what);
        }
    }
}

/// Where it is run, or the setting that cannot be carried over.
fn cwd<'a>(service: &'a Unit, is_user: bool, home: Option<&str>) -> Result<Option<String>, &'a Setting> {
    let own = || home_of(service.last("Service", "User").map(|setting| setting.value.as_str()));
    let Some(setting) = service.last("Service", "WorkingDirectory") else {
        return Ok(if is_user { own() } else { Some("/".to_owned()) });
    };
    match setting.value.trim_start_matches('-') {
        "~" => Ok(own()),
        path => specifiers(path, home).map(Some).ok_or(setting),
    }
}

/// How late a start may be, and how long a run.
fn limits(timer: &Unit, service: &Unit, job: &mut Imported, tables: &mut Tables) {
    let mut delay = Duration::ZERO;
    if let Some(setting) = timer.last("Timer", "RandomizedDelaySec") {
        match span(&setting.value) {
            Some(span) => delay = span,
            None => tables.notice(&setting.location, "RandomizedDelaySec= is not carried over: it is no time span"),
        }
    }
    if !delay.is_zero() {
        job.fields.push(("jitter", quoted(&format_duration(delay))));
    }
    if !timer.is_true("Timer", "Persistent") {
        // What was missed is missed; what is only delayed is not.
        let age = delay.saturating_add(Duration::from_secs(60));
        job.fields.push(("catch_up_max_age", quoted(&format_duration(age))));
    }
    if let Some(limit) = time_limit(service, tables) {
        job.fields.push(("timeout", quoted(&format_duration(limit))));
    }
}

/// How long a run may take. What limits the start of a service limits its run only where it has started when its command has
/// ended, and what limits its run only where it runs once it has started.
fn time_limit(service: &Unit, tables: &mut Tables) -> Option<Duration> {
    let kind = service.last("Service", "Type").map_or("simple", |setting| setting.value.as_str());
    let is_limit = |key: &str| (key == "RuntimeMaxSec") != (kind == "oneshot");
    let mut limit = None;
    for setting in service.section("Service") {
        if !["RuntimeMaxSec", "TimeoutStartSec", "TimeoutSec"].contains(&setting.key.as_str()) {
            continue;
        }
        let is_none = matches!(setting.value.as_str(), "" | "infinity");
        let found = span(&setting.value);
        if is_limit(&setting.key) {
            // The last one counts; zero is no limit either.
            limit = found.filter(|found| !found.is_zero());
        }
        let why = match found {
            None if !is_none => "it is no time span that is known here",
            Some(found) if !is_limit(&setting.key) && !found.is_zero() => {
                "it does not limit how long such a service runs"
            }
            _ => continue,
        };
        tables.notice(&setting.location, &format!("{}= is not carried over: {why}", setting.key));
    }
    limit
}
