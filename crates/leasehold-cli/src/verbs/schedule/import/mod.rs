//! `schedule import`: `[[job]]` tables from crontabs and systemd timers, on standard output.
//!
//! Promise: every table that is printed is one that `schedule check` accepts. What could not be carried over is said, line by
//! line, on standard error and as a comment where it stood. Non-promise: that a job runs as it did: the user, the mail and the
//! environment of cron and systemd are theirs.

mod calendar;
mod crontab;
mod flock;
mod table;
mod timer;
mod unit;

use crate::args::Import;
use crate::exit::Exit;
use crate::output;
use leasehold_core::{Error, Kind, Result};
use leasehold_work::schedule::Zone;
use std::io::Read;
use std::path::{Path, PathBuf};
use table::Tables;

/// What is longer is no crontab.
const MAX_BYTES: u64 = 1 << 20;

/// What an input is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A user's crontab.
    Crontab,
    /// `/etc/crontab` or a file of `cron.d`, with a column for the user.
    SystemCrontab,
    /// A systemd timer, with its service beside it.
    Timer,
}

pub fn import(args: &Import) -> Result<Exit> {
    let zone = match &args.tz {
        Some(zone) => zone.parse::<Zone>()?.to_string(),
        None => machine_zone(),
    };
    let mut tables = Tables::new(zone);
    let inputs = if args.files.is_empty() { vec![PathBuf::from("-")] } else { args.files.clone() };
    let mut unread = 0;
    for input in &inputs {
        let found = files(input, args.kind.as_deref(), &mut tables);
        let mut troubles: Vec<Error> = Vec::new();
        for (form, path) in found.unwrap_or_else(|error| {
            troubles.push(error);
            Vec::new()
        }) {
            troubles.extend(one(form, &path, &mut tables).err());
        }
        unread += troubles.len();
        troubles.iter().for_each(|trouble| tables.notice("not carried over", &trouble.to_string()));
    }
    output::print(&tables.text())?;
    tables.notices().iter().for_each(|notice| output::say(notice));
    let (jobs, left_out) = (tables.jobs(), tables.notices().len());
    if jobs == 0 {
        return Err(Error::new(Kind::Invalid, "no job was found that could be carried over"));
    }
    let what = if jobs == 1 { "1 job".to_owned() } else { format!("{jobs} jobs") };
    let end = match left_out {
        0 => "everything was carried over".to_owned(),
        1 => "check the note above".to_owned(),
        count => format!("check the {count} notes above"),
    };
    output::say(&format!("{what}; {end}. Put the tables into leasehold.toml, then run `leasehold schedule check`"));
    match unread {
        0 => Ok(Exit::Done),
        1 => Err(Error::new(Kind::Invalid, "1 file could not be read; the jobs of the others are printed")),
        many => Err(Error::new(
            Kind::Invalid,
            format!("{many} files could not be read; the jobs of the others are printed"),
        )),
    }
}

fn one(form: Option<Form>, path: &Path, tables: &mut Tables) -> Result<()> {
    if form == Some(Form::Timer) {
        return timer::import(path, tables);
    }
    let text = read(path)?;
    let is_system = match form {
        Some(form) => form == Form::SystemCrontab,
        None => crontab::has_users(&text, is_account),
    };
    crontab::import(&text, path, is_system, tables);
    if is_system && form.is_none() {
        let what = "the sixth word of every line is a user of this machine, so it was read as a system crontab; \
                    if it is none, give `--kind crontab`";
        tables.notice(&crontab::location(path), what);
    }
    Ok(())
}

/// The files of an argument, and what they are written in: by its flag, or by its name, or not yet known.
fn files(path: &Path, kind: Option<&str>, tables: &mut Tables) -> Result<Vec<(Option<Form>, PathBuf)>> {
    let form = |path: &Path| match kind {
        Some("crontab") => Some(Form::Crontab),
        Some("system") => Some(Form::SystemCrontab),
        Some(_) => Some(Form::Timer),
        None if path.extension().is_some_and(|end| end == "timer") => Some(Form::Timer),
        None if path.ends_with("etc/crontab") || path.parent().is_some_and(|folder| folder.ends_with("cron.d")) => {
            Some(Form::SystemCrontab)
        }
        None if path.parent().is_some_and(|folder| folder.ends_with("crontabs")) => Some(Form::Crontab),
        None => None,
    };
    if !path.is_dir() {
        return Ok(vec![(form(path), path.to_path_buf())]);
    }
    let cannot = |e| Error::new(Kind::Invalid, format!("cannot list `{}`", path.display())).with_source(e);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(cannot)? {
        let file = entry.map_err(cannot)?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // As cron does it: what a package manager or an editor left is none. Of a folder with units only the timers count.
        let is_cron = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
        let is_timer = name.ends_with(".timer");
        let is_wanted = match kind {
            Some("timer") => is_timer,
            Some(_) => is_cron,
            None if path.ends_with("cron.d") || path.ends_with("crontabs") => is_cron,
            None => is_timer,
        };
        if file.is_file() && is_wanted {
            found.push((form(&file), file));
        }
    }
    if found.is_empty() {
        let what = match kind {
            None => "the folder has no timers; if it has crontabs, give `--kind crontab` or `--kind system`",
            Some(_) => "the folder has no file of this kind",
        };
        tables.notice(&path.display().to_string(), what);
    }
    found.sort_by(|a, b| a.1.cmp(&b.1));
    Ok(found)
}

/// Reads a file, or standard input for `-`.
fn read(path: &Path) -> Result<String> {
    let cannot = |e| Error::new(Kind::Invalid, format!("cannot read `{}`", path.display())).with_source(e);
    let from: Box<dyn Read> = match path.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => Box::new(std::fs::File::open(path).map_err(cannot)?),
    };
    let mut bytes = Vec::new();
    from.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::new(Kind::Invalid, format!("`{}` has more than {MAX_BYTES} bytes", path.display())));
    }
    String::from_utf8(bytes).map_err(|_| Error::new(Kind::Invalid, format!("`{}` is not text", path.display())))
}

/// The zone that cron and systemd go by on this machine.
fn machine_zone() -> String {
    let zone = jiff::tz::TimeZone::system();
    zone.iana_name().filter(|name| name.parse::<Zone>().is_ok()).unwrap_or("UTC").to_owned()
}

/// The home folder of a user of this machine.
fn home_of(user: Option<&str>) -> Option<String> {
    let own = || std::env::var("HOME").ok().filter(|home| home.starts_with('/'));
    let Some(user) = user else { return own() };
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let line = passwd.lines().find(|line| line.split(':').next() == Some(user))?;
    line.split(':').nth(5).filter(|home| home.starts_with('/')).map(String::from)
}

fn is_account(name: &str) -> bool {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    passwd.lines().any(|line| line.split(':').next() == Some(name))
}

/// The user who runs this.
fn current_user() -> String {
    leasehold_system::accounts::user(rustix::process::geteuid().as_raw())
}
