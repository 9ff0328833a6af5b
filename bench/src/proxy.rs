//! `leasehold proxy` beside nginx as a plain reverse proxy, both in front of the same server.

use crate::load::{Times, turn};
use crate::report::{Demand, Row, Unit};
use crate::scratch::Scratch;
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const CONNECTIONS: usize = 16;
const TURNS: u32 = 6;
/// How much later than nginx's the slowest hundredth may come.
const SLACK: Duration = Duration::from_millis(2);

/// A server that is gone with the measurement.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // Asked, not killed: nginx's master would leave its workers behind.
        let asked = Command::new("kill").arg(self.0.id().to_string()).status();
        if !asked.is_ok_and(|status| status.success()) {
            let _ = self.0.kill();
        }
        let _ = self.0.wait();
    }
}

/// Times requests through `leasehold proxy` and through nginx, in turns.
pub fn compare(scratch: &Scratch, leasehold: &Path, limit: Duration) -> Result<Vec<Row>> {
    let folder = scratch.folder("proxy")?;
    let (upstream, plain) = (free()?, free()?);
    let _nginx = nginx(&folder, upstream, plain)?;
    let store = format!("sqlite:{}", folder.join("leases.db").display());
    let (_proxy, fenced) = proxy(leasehold, &store, upstream)?;
    let acquired = Command::new(leasehold).args(["acquire", "job", "--ttl", "1h", "--store", &store]).output()?;
    let token = String::from_utf8(acquired.stdout)?.trim().to_owned();
    let request = format!(
        "POST /write HTTP/1.1\r\nHost: bench\r\nLeasehold-Token: {token}\r\nContent-Length: 64\r\n\r\n{}",
        "x".repeat(64)
    );
    let each = limit / (2 * TURNS);
    for address in [fenced, plain] {
        ready(address, request.as_bytes())?;
    }
    let (mut ours, mut theirs) = (Times::default(), Times::default());
    for _ in 0..TURNS {
        ours.extend(turn(fenced, request.as_bytes(), CONNECTIONS, each)?);
        theirs.extend(turn(plain, request.as_bytes(), CONNECTIONS, each)?);
    }
    let per_request = |times: &Times| each * TURNS / u32::try_from(times.count().max(1)).unwrap_or(u32::MAX);
    let what = "proxied POST, 16 connections";
    let speed = Row::new(
        what,
        "nginx",
        Unit::PerSecond,
        per_request(&ours),
        Some(per_request(&theirs)),
        Demand::AtLeastTheSpeed(0.5),
    );
    let (slow, peer) = (ours.quantile(0.99), theirs.quantile(0.99));
    let tail = Row::new(
        "proxied POST, slowest hundredth",
        "nginx",
        Unit::Milliseconds,
        slow,
        Some(peer),
        Demand::AtMost(peer + SLACK),
    );
    Ok(vec![speed, tail])
}

fn free() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// One process that answers, and one that passes on, as Debian has it.
fn nginx(folder: &Path, upstream: SocketAddr, plain: SocketAddr) -> Result<Server> {
    let config = folder.join("nginx.conf");
    let folder = folder.display();
    let text = format!(
        "daemon off; worker_processes 2; pid {folder}/pid; error_log {folder}/error.log;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/temp;\n \
         fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s; keepalive_requests 1000000;\n \
         upstream up {{ server {upstream}; keepalive 64; keepalive_requests 1000000; }}\n \
         server {{ listen {upstream}; location / {{ return 200 'ok'; }} }}\n \
         server {{ listen {plain}; location / {{ proxy_pass http://up; proxy_http_version 1.1; \
         proxy_set_header Connection ''; proxy_request_buffering off; }} }}\n}}\n"
    );
    std::fs::write(&config, text)?;
    let child = Command::new("/usr/sbin/nginx")
        .arg("-c")
        .arg(&config)
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start nginx; `cargo xtask servers` installs it")?;
    Ok(Server(child))
}

fn proxy(leasehold: &Path, store: &str, upstream: SocketAddr) -> Result<(Server, SocketAddr)> {
    let url = format!("http://{upstream}");
    let args = ["proxy", "--listen", "127.0.0.1:0", "--upstream", &url, "--resource", "bench", "--store", store];
    // Not the user's: every measurement has a store of its own.
    let state = Path::new(store.trim_start_matches("sqlite:")).with_extension("state");
    let mut command = Command::new(leasehold);
    command.args(args).arg("--state").arg(state).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let mut line = String::new();
    if let Some(output) = child.stdout.as_mut() {
        BufReader::new(output).read_line(&mut line)?;
    }
    let server = Server(child);
    let Some(address) = line.trim().strip_prefix("listening on http://") else {
        bail!("`leasehold proxy` did not start; was the binary built with `--features http` or `full`?");
    };
    Ok((server, address.parse()?))
}

/// Waits until a server answers: it has just been started.
fn ready(address: SocketAddr, request: &[u8]) -> Result<()> {
    let mut last = None;
    for _ in 0..200 {
        match turn(address, request, 1, Duration::from_millis(10)) {
            Ok(times) if times.count() > 0 => return Ok(()),
            Ok(_) => {}
            Err(error) => last = Some(error),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(last.unwrap_or_else(|| anyhow::anyhow!("no answer"))).with_context(|| format!("{address} did not get ready"))
}
