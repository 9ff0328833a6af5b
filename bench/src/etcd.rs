//! An etcd of our own: on free ports of this machine, in the scratch folder, ended when dropped.

use anyhow::{Context, Result, bail};
use leasehold_core::clock::{Clock, SystemClock};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long it may take to answer for the first time.
const PATIENCE: Duration = Duration::from_secs(15);

/// An etcd server of our own, on a free port. It is killed when this is dropped.
#[derive(Debug)]
pub struct Etcd {
    server: Child,
    port: u16,
}

impl Etcd {
    /// Starts one and waits until it answers.
    pub fn start(folder: &Path) -> Result<Self> {
        // Both are held until both are known, so that they differ.
        let listeners = [TcpListener::bind(("127.0.0.1", 0))?, TcpListener::bind(("127.0.0.1", 0))?];
        let [port, peer_port] = [listeners[0].local_addr()?.port(), listeners[1].local_addr()?.port()];
        drop(listeners);
        let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer_port}"));
        let server = Command::new("etcd")
            .arg("--data-dir")
            .arg(folder)
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}"), "--log-level", "error"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start `etcd`; on Debian: apt-get install etcd-server etcd-client")?;
        let mut etcd = Etcd { server, port };
        let give_up = SystemClock.now() + PATIENCE;
        loop {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() && etcd.client().arg("get").arg("x").status()?.success()
            {
                return Ok(etcd);
            }
            if let Some(status) = etcd.server.try_wait()? {
                bail!("etcd ended while it started: {status}");
            }
            if SystemClock.now() >= give_up {
                bail!("etcd did not answer within {} s", PATIENCE.as_secs());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// `etcdctl` for this server, without a verb.
    pub fn client(&self) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints=127.0.0.1:{}", self.port));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
