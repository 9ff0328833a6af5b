//! The file with the `[[job]]` tables.
//!
//! Promise: it is valid as a whole, or it is refused as a whole, with the job and the field that are wrong.

use crate::config::{Settings, parse_toml, project_file, user_file};
use crate::supervise::deadlines::Deadlines;
use crate::{guards, outbound, run_output};
use leasehold_core::{Error, Kind, Label, Result};
use leasehold_work::schedule::{FileRevision, Job, JobTable, Publisher};
use serde::Deserialize;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The part of the file that is ours; the settings are read elsewhere.
#[derive(Debug, Deserialize)]
struct File {
    #[serde(default)]
    job: Vec<JobTable>,
    owner: Option<String>,
    revision: Option<u64>,
}

/// Jobs and where they came from.
#[derive(Debug)]
pub struct Jobs {
    /// The file that the jobs were read from.
    pub path: PathBuf,
    /// All of them, for this machine or not.
    pub all: Vec<Arc<Job>>,
    /// As whose they are published.
    pub publisher: Publisher,
    /// Whether the file says whose they are; otherwise its path does.
    pub names_owner: bool,
}

/// The file to read.
pub fn find(flag: Option<&Path>) -> Result<PathBuf> {
    let found = match flag {
        Some(path) => Some(path.to_path_buf()),
        None => project_file().or_else(|| user_file().filter(|path| path.is_file())),
    };
    let Some(path) = found else {
        let message = "there is no leasehold.toml in this folder, above it, or among the user's settings; write one with a [[job]] \
             table, or give --file";
        return Err(Error::new(Kind::Invalid, message));
    };
    std::path::absolute(&path)
        .map_err(|e| Error::new(Kind::Unsupported, format!("cannot find `{}`", path.display())).with_source(e))
}

impl Jobs {
    /// Reads and checks a file of jobs.
    pub fn read(path: &Path, settings: &Settings) -> Result<Self> {
        let shown = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|e| Error::new(Kind::Unsupported, format!("cannot read jobs `{shown}`")).with_source(e))?;
        let file: File = parse_toml(&text, "jobs", path)?;
        let (publisher, names_owner) = (publisher(path, &file, &text)?, file.owner.is_some());
        let folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
        let mut names = HashSet::new();
        let mut all = Vec::with_capacity(file.job.len());
        for (table, number) in file.job.into_iter().zip(1..) {
            let blame = |e: Error| Error::new(e.kind(), format!("invalid jobs `{shown}`: {e}"));
            let mut job = Job::read(table, number).map_err(blame)?;
            let in_job = |e: Error| blame(Error::new(e.kind(), format!("job `{}`: {e}", job.name)));
            if !names.insert(job.name.clone()) {
                return Err(in_job(Error::new(Kind::Invalid, "there are two jobs of this name; each has one lease")));
            }
            for guard in &job.guards {
                guards::parse(guard).map_err(in_job)?;
            }
            if job.ping.is_some() {
                outbound::check("ping").map_err(in_job)?;
            }
            run_output::check_variables(&job.env).map_err(in_job)?;
            let (ttl, grace) = (job.ttl.unwrap_or(settings.ttl.value), job.grace.or(settings.grace.value));
            Deadlines::new(ttl, grace).map_err(in_job)?;
            // Where the file is, unless it says otherwise: a service has no folder of its own.
            job.cwd = Some(job.cwd.map_or_else(|| folder.clone(), |cwd| folder.join(cwd)));
            job.env_file.iter_mut().for_each(|file| *file = folder.join(&*file));
            all.push(Arc::new(job));
        }
        if all.is_empty() {
            // As `init` writes it.
            let hint = match text.lines().any(|line| line.trim_start().starts_with("# [[job]]")) {
                true => "remove the `#` before the example that `init` wrote, or see docs/schedules.md",
                false => "see docs/schedules.md",
            };
            return Err(Error::new(Kind::Invalid, format!("there is no [[job]] table in `{shown}`; {hint}")));
        }
        Ok(Jobs { path: path.to_path_buf(), all, publisher, names_owner })
    }

    /// The job of this name.
    pub fn named(&self, name: &str) -> Result<&Arc<Job>> {
        self.all.iter().find(|job| job.name.as_str() == name).ok_or_else(|| {
            let message = format!("there is no job `{}` in `{}`", leasehold_core::printable(name), self.path.display());
            Error::new(Kind::Invalid, message)
        })
    }

    /// Those that machines with these labels run.
    pub fn for_machine(&self, labels: &[String]) -> Vec<Arc<Job>> {
        self.all.iter().filter(|job| job.runs_on(labels)).cloned().collect()
    }
}

/// Whose the file's jobs are, and how new it is.
fn publisher(path: &Path, file: &File, text: &str) -> Result<Publisher> {
    let owner = match &file.owner {
        Some(owner) => Label::named("owner", owner)
            .map(|owner| owner.to_string())
            .map_err(|e| Error::new(e.kind(), format!("invalid jobs `{}`: field `owner`: {e}", path.display())))?,
        None => path.display().to_string(),
    };
    let modified = std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let modified = modified.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok()).unwrap_or_default();
    let revision = FileRevision::new(file.revision, modified, text);
    Ok(Publisher { owner, revision, host: leasehold_system::host::name() })
}
