//! `leasehold serve` of our own: on a free port, with a key that may do everything, ended when dropped.

use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A running `leasehold serve`, which is ended when this is dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    address: String,
    key: String,
}

impl Server {
    /// Starts one before this store, with files of its own in this folder.
    pub fn start(leasehold: &Path, folder: &Path, store: &str) -> Result<Self> {
        let key_file = folder.join("key");
        let mut child = Command::new(leasehold)
            .args(["serve", "--listen", "127.0.0.1:0", "--store", store, "--max-rate", "1000000"])
            .arg("--bootstrap-key-file")
            .arg(&key_file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", leasehold.display()))?;
        let mut line = String::new();
        if let Some(output) = child.stdout.as_mut() {
            BufReader::new(output).read_line(&mut line)?;
        }
        let address = line.trim().rsplit("//").next().and_then(|rest| rest.split('/').next()).unwrap_or_default();
        let mut server = Server { child, address: address.to_owned(), key: String::new() };
        if server.address.is_empty() {
            bail!("`leasehold serve` did not start; was the binary built with `--features full`?");
        }
        std::fs::read_to_string(&key_file).context("no key")?.trim().clone_into(&mut server.key);
        Ok(server)
    }

    /// Where its API is.
    pub fn api(&self) -> String {
        format!("http://{}/v1/ns/default", self.address)
    }

    /// As `HOST:PORT`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The secret of the key that clients send.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// It as a store.
    pub fn store(&self) -> String {
        format!("leasehold+http://:{}@{}/default", self.key, self.address)
    }

    /// The memory that it has now, in kilobytes.
    pub fn memory_kb(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(line.trim().trim_end_matches("kB").trim().parse()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
