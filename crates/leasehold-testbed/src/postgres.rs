//! PostgreSQL: a server that flushes, standbys that follow one, and a pooler in transaction mode.

use crate::programs::program;
use crate::server::{Server, Spec, free_port, wait_until};
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Servers and poolers refuse to be root.
const USER: &str = "postgres";

/// A server with the superuser `postgres`, whom it trusts.
pub fn postgres() -> Postgres {
    Postgres::with(&[])
}

/// A PostgreSQL server that runs.
#[derive(Debug)]
pub struct Postgres(Server);

impl Deref for Postgres {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl DerefMut for Postgres {
    fn deref_mut(&mut self) -> &mut Server {
        &mut self.0
    }
}

impl Postgres {
    /// A new server with these settings, each as `name=value`.
    pub fn with(settings: &[&str]) -> Self {
        Postgres::within(Server::folder_for(USER), settings)
    }

    /// The same in this folder, which must be the user's `postgres`.
    pub fn within(folder: TempDir, settings: &[&str]) -> Self {
        Postgres::made(&folder);
        Postgres::start(folder, settings, &[])
    }

    /// A new server that sees these variables, such as those of libfaketime.
    pub fn seeing(env: &[(&str, &str)]) -> Self {
        let folder = Server::folder_for(USER);
        Postgres::made(&folder);
        Postgres::start(folder, &[], env)
    }

    fn made(folder: &TempDir) {
        let data = data(folder);
        Spec::new(program("initdb"), 0)
            .args(["-D", &data, "-A", "trust", "-U", USER, "-N", "--no-locale", "-E", "UTF8"])
            .user(USER)
            .run_to_end();
    }

    /// A standby that follows the server at this port, asynchronously unless that one's settings say otherwise.
    pub fn standby_of(port: u16, settings: &[&str]) -> Self {
        let folder = Server::folder_for(USER);
        let connection = format!("host=127.0.0.1 port={port} user={USER} application_name=standby");
        Spec::new(program("pg_basebackup"), 0)
            .args(["-D", &data(&folder), "-d", &connection, "-R", "-X", "stream", "-c", "fast", "--no-sync"])
            .user(USER)
            .run_to_end();
        Postgres::start(folder, settings, &[])
    }

    fn start(folder: TempDir, settings: &[&str], env: &[(&str, &str)]) -> Self {
        let port = free_port();
        let (data, sockets) = (data(&folder), folder.path().display().to_string());
        let spec = Spec::new(program("postgres"), port)
            .args(["-D", &data, "-p", &port.to_string(), "-k", &sockets])
            .args(["-c", "listen_addresses=127.0.0.1", "-c", "shared_buffers=16MB"])
            // In its folder, and gone with it.
            .args(["-c", "dynamic_shared_memory_type=mmap"])
            .args(settings.iter().flat_map(|setting| ["-c", setting]))
            // Killed, it would leave shared memory behind.
            .ends_by("QUIT")
            .user(USER);
        let spec = env.iter().fold(spec, |spec, (name, value)| spec.env(*name, *value));
        let server = Postgres(Server::start(spec, folder));
        server.wait_until_ready();
        server
    }

    /// Waits until it takes statements: it listens before that.
    pub fn wait_until_ready(&self) {
        wait_until("postgres takes statements", || self.try_sql("SELECT 1").is_ok());
    }

    /// A store URL that leads to this port, as the superuser.
    pub fn url(port: u16) -> String {
        format!("postgres://{USER}@127.0.0.1:{port}/{USER}")
    }

    /// Runs SQL as the superuser, and gives what it printed.
    ///
    /// # Panics
    /// If it fails.
    pub fn sql(&self, sql: &str) -> String {
        self.try_sql(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// The same, with the error instead.
    pub fn try_sql(&self, sql: &str) -> Result<String, String> {
        let output = Command::new(program("psql"))
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-U", USER, "-d", USER])
            .args(["-p", &self.port().to_string(), "-c", sql])
            .env("PGCONNECT_TIMEOUT", "5")
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// Its configuration folder, for certificates and `pg_hba.conf`.
    pub fn data(&self) -> PathBuf {
        self.folder().join("data")
    }
}

impl Drop for Postgres {
    /// One that was killed, and not started again, has left the memory by which it would have noticed its own kind.
    fn drop(&mut self) {
        if self.pid().is_some() {
            return;
        }
        let file = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        // Its seventh line is a key and a number.
        if let Some(number) = file.lines().nth(6).and_then(|line| line.split_whitespace().nth(1)) {
            let _ = Command::new("ipcrm").args(["-m", number]).stderr(Stdio::null()).status();
        }
    }
}

fn data(folder: &TempDir) -> String {
    folder.path().join("data").display().to_string()
}

/// A pooler in transaction mode in front of this server: each transaction may run in another session.
pub fn pgbouncer(server: &Postgres) -> Server {
    let (folder, port) = (Server::folder_for(USER), free_port());
    let file = folder.path().join("pgbouncer.ini");
    let settings = format!(
        "[databases]\n* = host=127.0.0.1 port={} user={USER}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
         listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 6\n\
         max_client_conn = 500\nserver_round_robin = 1\n",
        server.port()
    );
    std::fs::write(&file, settings).unwrap();
    let spec = Spec::new(program("pgbouncer"), port).args([file.display().to_string()]).user(USER);
    Server::start(spec, folder)
}
