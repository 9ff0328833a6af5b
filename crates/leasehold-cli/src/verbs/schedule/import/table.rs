//! What is printed: tables, and comments where something could not be carried over.

use leasehold_core::{Result, printable};
use leasehold_work::schedule::{Job, JobTable};
use std::collections::BTreeMap;
use std::collections::HashSet;

/// A job that was read from somewhere else.
#[derive(Debug, Default, Clone)]
pub struct Imported {
    /// What it was called, or what its command begins with.
    pub called: String,
    /// `cron` or `every`, and its value.
    pub schedule: (&'static str, String),
    /// The zone of a cron line.
    pub zone: Option<String>,
    pub command: Command,
    pub env: BTreeMap<String, String>,
    pub env_file: Vec<String>,
    pub cwd: Option<String>,
    /// Other fields, as they are written: `jitter` and `"5m"`.
    pub fields: Vec<(&'static str, String)>,
}

/// The command of an imported job.
#[derive(Debug, Clone)]
pub enum Command {
    /// A line for `/bin/sh`.
    Line(String),
    /// The words of the command, without a shell.
    Words(Vec<String>),
}

impl Default for Command {
    fn default() -> Self {
        Command::Line(String::new())
    }
}

/// The text that is printed, as it grows.
#[derive(Debug)]
pub struct Tables {
    /// The zone of this machine.
    pub zone: String,
    text: String,
    notices: Vec<String>,
    names: HashSet<String>,
    jobs: usize,
}

impl Tables {
    pub fn new(zone: String) -> Self {
        Tables { zone, text: String::new(), notices: Vec::new(), names: HashSet::new(), jobs: 0 }
    }

    pub fn text(&self) -> String {
        let head = "# A slot that was missed while no machine ran the scheduler is run once, unless it is older than \
                    `catch_up_max_age` (1d).\n";
        format!("{head}{}\n", self.text.trim_end())
    }

    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    pub const fn jobs(&self) -> usize {
        self.jobs
    }

    /// Says what could not be carried over, here and as a comment.
    pub fn notice(&mut self, location: &str, what: &str) {
        self.notices.push(format!("{location}: {what}"));
        self.text.push_str(&format!("\n# {}: {}", comment(location), comment(what)));
    }

    /// Begins what comes from one place.
    pub fn begin(&mut self, location: &str) {
        self.text.push_str(&format!("\n# from {}", comment(location)));
    }

    /// Adds a job, if it is one that would be accepted; otherwise says why not.
    pub fn add(&mut self, job: &Imported, location: &str) {
        let name = self.name(&job.called);
        let without_jitter = || {
            let mut job = job.clone();
            job.fields.retain(|(field, _)| *field != "jitter");
            job
        };
        let text = accepted(&table(job, &name)).or_else(|error| match error.to_string().contains("invalid jitter") {
            true => {
                self.notice(
                    location,
                    "the random delay is not carried over: it is longer than the time between two slots",
                );
                accepted(&table(&without_jitter(), &name))
            }
            false => Err(error),
        });
        match text {
            Ok(text) => {
                self.names.insert(name);
                self.jobs += 1;
                self.text.push_str(&format!("\n{text}"));
            }
            Err(error) => {
                // The table is refused in words that name the job; what is wrong with it comes behind.
                let what = error.to_string();
                let why = what.split_once(": ").map_or(&*what, |(_, why)| why);
                self.notice(location, &format!("not carried over: {why}"));
            }
        }
    }

    /// A name that no other job has.
    fn name(&self, called: &str) -> String {
        let plain: String = called
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' })
            .collect();
        let plain = plain.trim_matches(['-', '.']).chars().take(60).collect::<String>();
        let plain = if plain.is_empty() { "job".to_owned() } else { plain };
        let numbered = (2..).map(|number| format!("{plain}-{number}"));
        std::iter::once(plain.clone()).chain(numbered).find(|name| !self.names.contains(name)).unwrap_or(plain)
    }
}

/// The table, if it is valid.
fn accepted(text: &str) -> Result<String> {
    let fields = text.trim_start_matches("[[job]]\n");
    let table: JobTable = crate::config::parse_toml(fields, "job", std::path::Path::new("import"))?;
    Job::read(table, 1).map(|_| text.to_owned())
}

fn table(job: &Imported, name: &str) -> String {
    let mut lines = vec!["[[job]]".to_owned(), format!("name = {}", quoted(name))];
    lines.push(format!("{} = {}", job.schedule.0, quoted(&job.schedule.1)));
    lines.extend(job.zone.as_ref().filter(|_| job.schedule.0 == "cron").map(|zone| format!("tz = {}", quoted(zone))));
    lines.push(match &job.command {
        Command::Line(line) => format!("command = {}", quoted(line)),
        Command::Words(words) => format!("argv = {}", list(words)),
    });
    lines.extend(job.cwd.as_ref().map(|cwd| format!("cwd = {}", quoted(cwd))));
    match &job.env_file[..] {
        [] => {}
        [file] => lines.push(format!("env_file = {}", quoted(file))),
        files => lines.push(format!("env_file = {}", list(files))),
    }
    if !job.env.is_empty() {
        let pairs = job.env.iter().map(|(name, value)| format!("{} = {}", quoted(name), quoted(value)));
        lines.push(format!("env = {{ {} }}", pairs.collect::<Vec<_>>().join(", ")));
    }
    lines.extend(job.fields.iter().map(|(field, value)| format!("{field} = {value}")));
    format!("{}\n", lines.join("\n"))
}

fn list(words: &[String]) -> String {
    format!("[{}]", words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(", "))
}

/// A string of TOML.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// One line that TOML takes for a comment.
fn comment(text: &str) -> String {
    text.lines().map(|line| line.chars().filter(|c| !c.is_control()).collect::<String>()).collect::<Vec<_>>().join(" ")
}

/// What a job is called that has only a command: the program that does the work.
pub fn called(command: &str) -> String {
    const BEFORE: [&str; 12] =
        ["env", "nice", "ionice", "chronic", "sudo", "exec", "time", "nohup", "sh", "bash", "timeout", "flock"];
    let mut is_condition = false;
    for word in command.split_whitespace() {
        let ends = matches!(word, "&&" | "||" | ";") || word.ends_with(';');
        let word = word.trim_matches(['"', '\'', '(', ')', '{', '}', ';']);
        let program = word.rsplit('/').next().unwrap_or(word);
        let is_option = word.starts_with('-') || word.chars().all(|c| c.is_ascii_digit() || c == '.');
        let is_assignment = word.split_once('=').is_some_and(|(name, _)| !name.is_empty() && !name.contains('/'));
        if ends {
            is_condition = false;
            continue;
        }
        if is_condition || word.is_empty() || is_option || is_assignment || BEFORE.contains(&program) {
            continue;
        }
        if !matches!(program, "cd" | "test" | "[" | "") {
            return program.trim_end_matches(".sh").trim_end_matches(".py").to_owned();
        }
        // Up to the command that depends on it.
        is_condition = true;
    }
    "job".to_owned()
}

/// A value in a message: never a secret, and one line.
pub fn shown(text: &str) -> String {
    printable(text)
}
