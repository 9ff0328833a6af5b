//! Crontabs: a user's, and the system's with a column for the user.
//!
//! A line is a comment, a variable for the lines below it, or a job: five fields or a nickname, perhaps a user, and the rest
//! of the line for a shell. In that rest `%` is a line break, and what follows the first one is the command's input.

use super::flock::{Busy, Flocked, flocked, is_partly_flocked, taken_apart};
use super::table::{Command, Imported, Tables, called, quoted, shown};
use super::{current_user, home_of};
use leasehold_work::schedule::Zone;
use std::collections::BTreeMap;
use std::path::Path;

const NICKNAMES: [&str; 7] = ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];

/// What variables above a line say of it.
struct Environment {
    env: BTreeMap<String, String>,
    shell: Option<String>,
    zone: String,
    /// Up to how many minutes cron delays a start.
    delay: u32,
    /// The files that lines lock with `flock`, one for each line.
    locks: Vec<String>,
}

pub fn import(text: &str, path: &Path, has_user: bool, tables: &mut Tables) {
    let file = location(path);
    tables.begin(&file);
    let zone = tables.zone.clone();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let locks = lines.filter_map(|line| Some(taken_apart(&line[line.find("flock")?..])?.lock)).collect();
    let mut around = Environment { env: BTreeMap::new(), shell: None, zone, delay: 0, locks };
    let mut lacks_path = false;
    for (line, number) in text.lines().zip(1..) {
        let (line, location) = (line.trim(), format!("{file}, line {number}"));
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some((name, value)) = variable(line) {
            around.set(&name, value, &location, tables);
            continue;
        }
        let known = tables.jobs();
        job(line, has_user, &around, &location, tables);
        lacks_path |= tables.jobs() > known && !around.env.contains_key("PATH");
    }
    if lacks_path {
        let what = "PATH is not set above every job: cron gave these its own, such as /usr/bin:/bin, and here they have the \
                    environment of the scheduler; `env = { PATH = \"...\" }` sets one";
        tables.notice(&file, what);
    }
}

/// What a file is called in what is said of it.
pub fn location(path: &Path) -> String {
    if path.as_os_str() == "-" { "standard input".to_owned() } else { path.display().to_string() }
}

/// Whether this must be a system crontab: every job names a user behind its times and has a command behind that, and one of
/// them is root. (`mail` and `git` are users too, but also commands.)
pub fn has_users(text: &str, is_account: impl Fn(&str) -> bool) -> bool {
    let jobs = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let users: Vec<Option<String>> = jobs
        .filter(|line| variable(line).is_none())
        .map(|line| {
            let (_, rest) = split_fields(line, if line.starts_with('@') { 1 } else { 5 });
            let (user, command) = split_fields(rest, 1);
            let name = user.split([':', '/']).next().unwrap_or_default();
            (!command.is_empty() && is_account(name)).then(|| name.to_owned())
        })
        .collect();
    users.iter().all(Option::is_some) && users.iter().flatten().any(|user| user == "root")
}

/// `NAME = value`, where both may be in quotes.
fn variable(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once('=')?;
    let name = unquoted(name.trim());
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then(|| (name.to_owned(), unquoted(value.trim()).to_owned()))
}

fn unquoted(text: &str) -> &str {
    let inner = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    inner('"').or_else(|| inner('\'')).unwrap_or(text)
}

impl Environment {
    fn set(&mut self, name: &str, value: String, location: &str, tables: &mut Tables) {
        match name {
            "MAILTO" | "MAILFROM" | "CONTENT_TYPE" | "CONTENT_TRANSFER_ENCODING" => {
                if !value.is_empty() {
                    let what = format!(
                        "{name} is not carried over: output is kept (`leasehold logs NAME`); a [[notify]] table tells you of \
                         failures"
                    );
                    tables.notice(location, &what);
                }
            }
            "SHELL" => self.shell = Some(value).filter(|shell| !matches!(shell.as_str(), "/bin/sh" | "sh" | "")),
            "CRON_TZ" => match value.parse::<Zone>() {
                Ok(zone) => self.zone = zone.to_string(),
                Err(error) => tables.notice(location, &format!("CRON_TZ is not carried over: {error}")),
            },
            "RANDOM_DELAY" => match value.parse() {
                Ok(minutes) => self.delay = minutes,
                Err(_) => tables.notice(location, "RANDOM_DELAY is not carried over: it is no number of minutes"),
            },
            name if name.starts_with("LEASEHOLD_") => {
                tables.notice(location, &format!("{name} is not carried over: such names are leasehold's own"));
            }
            name => drop(self.env.insert(name.to_owned(), value)),
        }
    }

    /// The command without the `flock` that it begins with, and what its job says in `busy` for that. One whose file other lines
    /// lock too keeps these jobs apart, which their leases do not: it stays.
    fn without_flock(&self, command: &str, location: &str, tables: &mut Tables) -> (String, Option<String>) {
        /// In place of no limit.
        const LONGEST_WAIT: &str = "wait 1h";
        let Some(Flocked { lock, busy, command: bare }) = flocked(command) else {
            if is_partly_flocked(command) {
                let what = "`flock` stays, and the line as it is: only its first command is under the lock";
                tables.notice(location, what);
            }
            return (command.to_owned(), None);
        };
        let file = shown(&lock);
        if self.locks.iter().filter(|other| **other == lock).count() > 1 {
            let what = format!(
                "other lines lock `{file}` too, so `flock` stays: each job's lease keeps only its own runs apart"
            );
            tables.notice(location, &what);
            return (command.to_owned(), None);
        }
        let (busy, waits) = match busy {
            Busy::Skip => (None, String::new()),
            Busy::Wait(Some(seconds)) => (Some(format!("wait {seconds}s")), String::new()),
            Busy::Wait(None) => (
                Some(LONGEST_WAIT.to_owned()),
                format!("; it waited without a limit, and waits for an hour by `{LONGEST_WAIT}`"),
            ),
        };
        let what = format!(
            "`flock` on `{file}` is left out: the job's lease keeps its runs apart, on all machines{waits}. If a script outside this \
             crontab locks that file too, put it back"
        );
        tables.notice(location, &what);
        (bare, busy)
    }
}

fn job(line: &str, has_user: bool, around: &Environment, location: &str, tables: &mut Tables) {
    // A leading `-` asks some crons not to log the start.
    let line = line.strip_prefix('-').unwrap_or(line);
    let fields = if line.starts_with('@') { 1 } else { 5 };
    let (schedule, rest) = split_fields(line, fields);
    let (user, rest) = if has_user { split_fields(rest, 1) } else { (String::new(), rest) };
    if rest.is_empty() || (has_user && user.is_empty()) {
        let form = if has_user { "five fields, a user and a command" } else { "five fields and a command" };
        return tables.notice(location, &format!("not carried over: `{}` does not have {form}", shown(line)));
    }
    if schedule.eq_ignore_ascii_case("@reboot") {
        let what = format!(
            "not carried over: @reboot names no time; for `{}` write a systemd unit with `leasehold run NAME -- COMMAND`",
            shown(rest)
        );
        return tables.notice(location, &what);
    }
    if schedule.starts_with('@') && !NICKNAMES.iter().any(|known| schedule.eq_ignore_ascii_case(known)) {
        let what = format!("not carried over: the nickname `{}` is not known", shown(&schedule));
        return tables.notice(location, &what);
    }
    // For cron, a user may also name a group or a login class.
    let user = user.split([':', '/']).next().unwrap_or_default();
    if has_user && user != current_user() {
        tables.notice(location, &format!("it ran as `{}`: here jobs run as the user of the scheduler", shown(user)));
    }
    let (schedule, steps) = with_ranges(&schedule);
    for (written, range) in steps {
        tables.notice(location, &format!("`{written}`, which not every cron reads, is carried over as `{range}`"));
    }
    let (rest, busy) = around.without_flock(rest, location, tables);
    let (command, has_input) = with_input(&rest);
    if has_input {
        tables.notice(location, "what follows `%` was the command's input; the line below gives it by a pipe");
    }
    // Where there is no such folder, cron takes the root.
    let home = || home_of(has_user.then_some(user)).filter(|home| Path::new(home).is_dir());
    let home = around.env.get("HOME").cloned().or_else(home).unwrap_or_else(|| "/".into());
    let mut job = Imported {
        called: taken_apart(&rest).map_or_else(|| called(&rest), |kept| called(&kept.command)),
        schedule: ("cron", schedule),
        zone: Some(around.zone.clone()),
        command: match &around.shell {
            Some(shell) => Command::Words(vec![shell.clone(), "-c".into(), command]),
            None => Command::Line(command),
        },
        env: around.env.clone(),
        cwd: Some(home),
        ..Imported::default()
    };
    job.fields.extend(busy.map(|busy| ("busy", quoted(&busy))));
    if around.delay > 0 {
        job.fields.push(("jitter", quoted(&format!("{}m", around.delay))));
    }
    tables.add(&job, location);
}

/// The first fields, one space apart, and what comes behind them.
fn split_fields(line: &str, count: usize) -> (String, &str) {
    let (mut fields, mut rest) = (Vec::new(), line);
    for _ in 0..count {
        rest = rest.trim_start();
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        fields.push(&rest[..end]);
        rest = &rest[end..];
    }
    (fields.join(" ").trim_end().to_owned(), rest.trim_start())
}

/// A schedule in which steps that begin at a number are ranges (`5/15` is `5-59/15`), and which ones these were.
fn with_ranges(schedule: &str) -> (String, Vec<(String, String)>) {
    /// The highest values of the five fields.
    const HIGHEST: [u32; 5] = [59, 23, 31, 12, 7];
    let mut changed = Vec::new();
    let mut ranged = |part: &str, highest: u32| {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let step = part.split_once('/').filter(|(first, step)| is_number(first) && is_number(step));
        step.map_or_else(
            || part.to_owned(),
            |(first, step)| {
                let range = format!("{first}-{highest}/{step}");
                changed.push((part.to_owned(), range.clone()));
                range
            },
        )
    };
    let fields = schedule.split(' ').zip(HIGHEST.into_iter().chain(std::iter::repeat(0)));
    let fields: Vec<String> = fields
        .map(|(field, highest)| field.split(',').map(|part| ranged(part, highest)).collect::<Vec<_>>().join(","))
        .collect();
    (fields.join(" "), changed)
}

/// A command with what `%` means in it, and whether it has an input.
fn with_input(text: &str) -> (String, bool) {
    let mut parts = vec![String::new()];
    let mut letters = text.chars().peekable();
    while let Some(c) = letters.next() {
        let last = parts.len() - 1;
        match c {
            '\\' if letters.peek() == Some(&'%') => parts[last].extend(letters.next()),
            '%' => parts.push(String::new()),
            c => parts[last].push(c),
        }
    }
    let command = parts.remove(0);
    if parts.is_empty() {
        return (command, false);
    }
    let words: Vec<String> = parts.iter().map(|part| format!("'{}'", part.replace('\'', "'\\''"))).collect();
    (format!("printf '%s\\n' {} | {{ {}\n}}", words.join(" "), command.trim_end()), true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_signs_are_line_breaks_of_the_input() {
        assert_eq!(with_input("date +\\%F"), ("date +%F".into(), false));
        assert_eq!(with_input("cat%one%it's"), ("printf '%s\\n' 'one' 'it'\\''s' | { cat\n}".into(), true));
    }

    #[test]
    fn a_step_that_begins_at_a_number_is_a_range() {
        let (schedule, changed) = with_ranges("5/15,50 2/6 * 1/3 1/2");
        assert_eq!(schedule, "5-59/15,50 2-23/6 * 1-12/3 1-7/2");
        assert_eq!(changed[0], ("5/15".into(), "5-59/15".into()));
        for same in ["*/5 9-17/2 * * MON", "@daily", "/5 a/2 * * *"] {
            assert_eq!(with_ranges(same), (same.to_owned(), Vec::new()));
        }
    }

    #[test]
    fn a_system_crontab_is_known_by_its_users() {
        let is_account = |name: &str| ["root", "mail", "git"].contains(&name);
        let system =
            "SHELL=/bin/sh\n# m h dom mon dow user command\n17 * * * * root run-parts x\n@daily mail clean -a\n";
        assert!(has_users(system, is_account));
        for user in ["0 3 * * * git pull\n", "0 3 * * * root run\n0 4 * * * backup --all\n", "0 3 * * * root\n", ""] {
            assert!(!has_users(user, is_account), "{user}");
        }
    }

    #[test]
    fn a_variable_is_distinguished_from_a_job() {
        assert_eq!(variable("PATH = \"/usr/bin:/bin\""), Some(("PATH".into(), "/usr/bin:/bin".into())));
        assert_eq!(variable("0 3 * * * A=b ./x"), None);
        assert_eq!(variable("@daily A=b ./x"), None);
        assert_eq!(variable("MAILTO="), Some(("MAILTO".into(), String::new())));
    }

    #[test]
    fn a_job_is_called_by_its_program() {
        for (command, name) in [
            ("/usr/local/bin/backup --full", "backup"),
            ("cd /srv/app && ./bin/report.sh", "report"),
            ("LANG=C nice -n 10 /usr/bin/updatedb", "updatedb"),
            ("test -x /usr/sbin/anacron || run-parts --report /etc/cron.daily", "run-parts"),
            ("[ -x /bin/x ]", "job"),
            ("%", "%"),
        ] {
            assert_eq!(called(command), name, "{command}");
        }
    }
}
