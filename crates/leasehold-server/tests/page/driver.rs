//! A browser and the script that drives it.
//!
//! The script beside this file does what a person would; where others change something meanwhile, it asks for that by a line on
//! its standard output, and waits for the answer on its standard input.

use leasehold_testbed::{node_module, program};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tokio::sync::mpsc;

/// The script, at work.
pub struct Browser {
    child: Child,
    lines: mpsc::UnboundedReceiver<String>,
}

impl Browser {
    /// Begins an act on the page at this address.
    pub fn start(url: &str, act: &str, more: &[(&str, &str)]) -> Self {
        // Tests of the command use it too.
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../leasehold-server/tests/page/browser.mjs");
        let mut command = Command::new(program("node"));
        command
            .arg(script)
            .arg(act)
            .env("URL", url)
            .env("CHROMIUM", program("chromium"))
            .env("PLAYWRIGHT", node_module("playwright-core/index.mjs"))
            .env("AXE", node_module("axe-core/axe.min.js"))
            .envs(more.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (send, lines) = mpsc::unbounded_channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || output.lines().map_while(Result::ok).for_each(|line| drop(send.send(line))));
        Browser { child, lines }
    }

    /// What the script asks for next; none when it is over.
    pub async fn asks(&mut self) -> Option<String> {
        loop {
            let line = self.lines.recv().await?;
            match line.strip_prefix("ask ") {
                Some(asked) => return Some(asked.to_owned()),
                None => println!("browser: {line}"),
            }
        }
    }

    /// What it has asked for is done.
    pub fn answer(&mut self) {
        writeln!(self.child.stdin.as_mut().unwrap(), "done").unwrap();
    }

    pub async fn ends_well(mut self) {
        assert_eq!(self.asks().await, None);
        let mut child = self.child;
        let status = tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap();
        assert!(status.success(), "the script failed: {status}");
    }
}
