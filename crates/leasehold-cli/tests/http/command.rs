//! `leasehold proxy` as a process, in front of a server of the test.

use crate::common::{Home, PATIENCE, eventually};
use crate::peer::{Answer, once, post};
use crate::upstream::Upstream;
use leasehold_core::clock::{Clock, SystemClock};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub struct Proxy {
    pub child: Child,
    pub address: SocketAddr,
}

impl Proxy {
    pub fn start(home: &Home, upstream: &Upstream, extra: &[&str]) -> Self {
        Proxy::to(home, &upstream.url(), extra, None)
    }

    /// To any upstream, trusting the certificates in this file if it is given. What it logs is in `proxy.log`.
    pub fn to(home: &Home, url: &str, extra: &[&str], trusted: Option<&str>) -> Self {
        let log = File::options().create(true).append(true).open(home.path("proxy.log")).unwrap();
        let mut args = vec!["proxy", "--listen", "127.0.0.1:0", "--upstream", url, "--resource", "api", "--json"];
        args.extend(extra);
        let mut child = home
            .leasehold(&args)
            .envs(trusted.map(|file| ("SSL_CERT_FILE", file)))
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let told: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(told["strength"], "atomic");
        Proxy { child, address: told["listen"].as_str().unwrap().parse().unwrap() }
    }

    pub fn active(self) -> Self {
        eventually("the proxy is active", || self.get("/.well-known/leasehold/health").status == 200);
        self
    }

    pub fn get(&self, target: &str) -> Answer {
        once(self.address, format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap()
    }

    pub fn write(&self, token: &str, body: &str) -> Answer {
        once(self.address, &post("/write", token, body.as_bytes())).unwrap()
    }

    pub fn keyed(&self, token: &str, key: &str, target: &str, body: &str) -> Answer {
        let head = format!(
            "POST {target} HTTP/1.1\r\nHost: x\r\nLeasehold-Token: {token}\r\nIdempotency-Key: {key}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        once(self.address, head.as_bytes()).unwrap()
    }

    /// Writes, asking again while the proxy stands by or waits for what is at work.
    pub fn write_until(&self, token: &str, body: &str) -> Answer {
        let end = SystemClock.now() + PATIENCE;
        loop {
            let answer = self.write(token, body);
            if answer.status != 503 {
                return answer;
            }
            assert!(SystemClock.now() < end, "a new holder was blocked: {answer:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Told to end, and waited for.
    pub fn end(mut self) {
        self.signal("-TERM");
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }

    /// Killed, and waited for.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap().success());
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn acquire(home: &Home) -> String {
    let _ = home.done(&["revoke", "job", "--why", "test"]);
    home.done(&["acquire", "job", "--ttl", "10m"]).expect(0).stdout.trim().to_owned()
}
