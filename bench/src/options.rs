//! The command line.

use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::path::PathBuf;

/// What `--help` prints.
pub const HELP: &str = "\
Usage: leasehold-bench [--quick] [--check] [--only PART] [--json FILE] [--scratch FOLDER] [--leasehold FILE]

  --quick            at most 25 seconds instead of 90
  --check            exit with 1 if a demand is not met
  --only PART        one part only: runs, stores, writes, push, sql, put, proxy, mcp, schedule, queue (of it
                     alone: crowd, lines) or fleet (or an engine); and, not in the whole: server (the API beside
                     etcd's gateway), held (20,000 leases through a server, for five minutes), pages
                     (the page where there are a million leases and items)
  --json FILE        write the results there too
  --scratch FOLDER   where to keep the state; a real disk (default: beside this program)
  --leasehold FILE   the release binary to measure (default: beside this program)
";

/// A part of the comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Commands under a lease.
    Runs,
    /// Leases per second.
    Stores,
    /// A scheduler of many jobs.
    Schedule,
    /// Queues and spools.
    Queue,
    /// Of queues, workers in processes of their own.
    Crowd,
    /// Of queues, long lines.
    Lines,
    /// Fenced writes of files.
    Writes,
    /// Fenced pushes to a git remote.
    Push,
    /// The reverse proxy.
    Proxy,
    /// The gate of MCP tools.
    Mcp,
    /// Fenced transactions in PostgreSQL.
    Sql,
    /// Fenced puts into a bucket.
    Put,
    /// Many leases and waiters at one server.
    Held,
    /// The page of a server, with a million leases and items.
    Pages,
    /// Servers that fleets run: all of them, or one.
    Fleet(Option<String>),
}

/// What was asked for.
#[derive(Debug)]
pub struct Options {
    /// Measure for a shorter time.
    pub quick: bool,
    /// Fail if a demand is not met.
    pub check: bool,
    /// The one part to measure.
    pub only: Option<Part>,
    /// Where the results go besides the output.
    pub json: Option<PathBuf>,
    /// Where the state is kept.
    pub scratch: Option<PathBuf>,
    /// The command to measure.
    pub leasehold: PathBuf,
}

impl Options {
    /// Whether this part is to be measured.
    pub fn wants(&self, part: Part) -> bool {
        self.only.as_ref().is_none_or(|only| *only == part)
    }

    /// Which engines of the fleet are to be measured: none of them, all, or one.
    pub fn fleet(&self) -> Option<Option<&str>> {
        match &self.only {
            None => Some(None),
            Some(Part::Fleet(engine)) => Some(engine.as_deref()),
            Some(_) => None,
        }
    }

    /// Reads the arguments; none if only help is wanted.
    pub fn parse(words: &[OsString]) -> Result<Option<Self>> {
        let mut options = Options {
            quick: false,
            check: false,
            only: None,
            json: None,
            scratch: None,
            leasehold: std::env::current_exe().context("where is this program?")?.with_file_name("leasehold"),
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().map(PathBuf::from).with_context(|| format!("{word:?} wants a value"));
            match word.to_str() {
                Some("--quick") => options.quick = true,
                Some("--check") => options.check = true,
                Some("--only") => {
                    options.only = Some(match value()?.to_str() {
                        Some("runs") => Part::Runs,
                        Some("stores") => Part::Stores,
                        Some("schedule") => Part::Schedule,
                        Some("queue") => Part::Queue,
                        Some("crowd") => Part::Crowd,
                        Some("lines") => Part::Lines,
                        Some("writes") => Part::Writes,
                        Some("push") => Part::Push,
                        Some("proxy") => Part::Proxy,
                        Some("mcp") => Part::Mcp,
                        Some("sql") => Part::Sql,
                        Some("put") => Part::Put,
                        Some("held") => Part::Held,
                        Some("pages") => Part::Pages,
                        Some("fleet") => Part::Fleet(None),
                        Some(engine) => Part::Fleet(Some(engine.to_owned())),
                        None => {
                            bail!(
                                "--only wants runs, stores, writes, push, sql, put, proxy, mcp, schedule, queue, crowd, lines, held, pages, server, fleet or an engine"
                            )
                        }
                    });
                }
                Some("--json") => options.json = Some(value()?),
                Some("--scratch") => options.scratch = Some(value()?),
                Some("--leasehold") => options.leasehold = value()?,
                Some("--help" | "-h") => return Ok(None),
                _ => bail!("unknown argument {word:?}; see --help"),
            }
        }
        // Commands run inside the scratch folder.
        options.leasehold = std::path::absolute(&options.leasehold)?;
        if !options.leasehold.is_file() {
            bail!(
                "no binary at {}; build it with `cargo build --release -p leasehold-cli`, or use bench/run",
                options.leasehold.display()
            );
        }
        Ok(Some(options))
    }
}
