//! A `leasehold serve` between the fleet and PostgreSQL: the fleet has a key, and not the store.

use crate::log::now_ms;
use crate::site::Site;
use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::Duration;

/// How long it may take to listen.
const LISTENS_MS: u64 = 20_000;

/// The server. It goes with this.
#[derive(Debug)]
pub(crate) struct Served {
    site: Site,
    /// The store behind it.
    store: String,
    port: u16,
    child: Option<Child>,
}

impl Served {
    /// Starts it before this store.
    pub(crate) fn start(site: &Site, store: &str) -> Self {
        let mut served =
            Served { site: site.clone(), store: store.to_owned(), port: leasehold_testbed::free_port(), child: None };
        served.restart();
        served
    }

    /// A key for everything that the fleet does.
    pub(crate) fn key(site: &Site, store: &str) -> String {
        let words = ["key", "create", "--label", "torture", "--allow", "read,hold,work,operate"];
        let made = site.verb(&words, store, None).output().unwrap();
        assert!(made.status.success(), "no key was made: {}", String::from_utf8_lossy(&made.stderr));
        String::from_utf8(made.stdout).unwrap().trim().to_owned()
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    pub(crate) const fn is_there(&self) -> bool {
        self.child.is_some()
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it at its port, and waits until it listens.
    pub(crate) fn restart(&mut self) {
        let log = OpenOptions::new().create(true).append(true).open(self.site.actor_log("server")).unwrap();
        let listen = format!("127.0.0.1:{}", self.port);
        let mut command = self.site.verb(&["serve", "--listen", &listen], &self.store, None);
        let begun = now_ms();
        let mut child = command.stdout(Stdio::null()).stderr(log).process_group(0).spawn().unwrap();
        while std::net::TcpStream::connect(&listen).is_err() {
            // Its store may be away just now.
            if child.try_wait().unwrap().is_some() {
                child = command.spawn().unwrap();
            }
            assert!(now_ms() < begun + LISTENS_MS, "the server does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
        self.child = Some(child);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.kill();
    }
}
