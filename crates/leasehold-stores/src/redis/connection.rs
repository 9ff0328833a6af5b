//! The connection to the one server that has this namespace: found, and found again after a loss.
//!
//! Promise: a write is sent at most once, unless the server answered that it did not run it; every call ends in bounded
//! time. Non-promise: it retries only what certainly was not run, and a read whose connection was lost. The driver's
//! own cluster and sentinel clients are not used, because they retry by themselves and cannot send `WAIT` on the
//! connection of the write. One namespace is one slot, so one connection is enough.

use super::config::{Config, Mode, Node};
use super::error::{CallError, failed};
use super::statements::Lua;
use super::watch::Watchers;
use crate::phase::Phase;
use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, Pipeline, PushInfo, PushKind, Value, cmd, pipe};
use leasehold_core::{Error, Kind, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::sync::mpsc::Sender;
use tokio::time::timeout;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(3);
/// How long one answer may take, without the wait for replicas.
const ANSWER: Duration = Duration::from_secs(4);
/// How long a call may take in total.
const CALL: Duration = Duration::from_secs(10);
/// How many redirections a call follows.
const HOPS: usize = 6;
/// The interval at which a lost connection is reopened while anything is watched.
const TENDING: Duration = Duration::from_secs(1);

/// A request to the server.
pub(super) enum Call<'a> {
    /// A script with its keys and arguments.
    Script { script: &'static Lua, keys: &'a [String], args: &'a [&'a [u8]] },
    /// A command, for surveys.
    Command(Cmd),
}

impl Call<'_> {
    /// The form that is sent: a script by its digest, or in full where the server does not have it.
    fn command(&self, is_whole: bool) -> Cmd {
        match self {
            Call::Command(command) => command.clone(),
            Call::Script { script, keys, args } => {
                let mut command = if is_whole { cmd("EVAL") } else { cmd("EVALSHA") };
                command.arg(if is_whole { script.code } else { script.digest.as_str() });
                command.arg(keys.len()).arg(*keys).arg(*args);
                command
            }
        }
    }
}

/// Whether to wait for replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Confirm {
    /// As the address says.
    ByReplicas,
    /// Replicas are not waited for.
    No,
}

/// A connection that worked when it was last used.
struct Connection {
    connection: MultiplexedConnection,
    node: Node,
    is_gone: Arc<AtomicBool>,
}

impl Connection {
    fn give_up(&self) {
        self.is_gone.store(true, Ordering::SeqCst);
    }
}

/// What is known about the server's location, and the connection in use.
pub(super) struct Connections {
    pub(super) config: Config,
    watchers: Arc<Watchers>,
    live: Mutex<Current>,
    /// Held while subscriptions change: one change at a time.
    subscribing: Mutex<()>,
}

#[derive(Default)]
struct Current {
    live: Option<Arc<Connection>>,
    /// The node of a cluster that last had the slot.
    owner: Option<Node>,
}

impl Connections {
    pub(super) fn new(config: Config) -> Arc<Self> {
        Arc::new(Connections {
            config,
            watchers: Arc::default(),
            live: Mutex::default(),
            subscribing: Mutex::default(),
        })
    }

    /// Sends a call to the server. An error says whether it may have been carried out.
    pub(super) async fn call(&self, call: Call<'_>, phase: Phase, confirm: Confirm) -> Result<Value> {
        let sent = AtomicBool::new(false);
        timeout(CALL, self.follow(&call, phase, confirm, &sent)).await.unwrap_or_else(|_| {
            let kind = match phase {
                Phase::Writing if sent.load(Ordering::SeqCst) => Kind::Indeterminate,
                _ => Kind::Unavailable,
            };
            Err(Error::new(kind, format!("{} did not answer within {} s", self.config.name, CALL.as_secs())))
        })
    }

    /// Follows redirections until a server answers.
    async fn follow(&self, call: &Call<'_>, phase: Phase, confirm: Confirm, sent: &AtomicBool) -> Result<Value> {
        let (mut is_whole, mut is_retried, mut last) = (false, false, None);
        for _ in 0..HOPS {
            // What was sent before was answered with a redirection.
            sent.store(false, Ordering::SeqCst);
            let live = self.live().await?;
            sent.store(true, Ordering::SeqCst);
            let answer = self.send(&live, call.command(is_whole), phase, confirm, None).await;
            let error = match answer {
                Ok(value) => return Ok(value),
                Err(CallError::Asked(node)) if self.config.mode == Mode::Cluster => {
                    let next_owner =
                        self.connect(&on_same_host(node, &live)).await.map_err(|t| t.into_error(&self.config.name))?;
                    // The script in full: a node that is just receiving the slot may not have it.
                    match self.send(&next_owner, call.command(true), phase, confirm, Some(cmd("ASKING"))).await {
                        Ok(value) => return Ok(value),
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            match &error {
                CallError::NoScript => is_whole = true,
                CallError::Moved(node) if self.config.mode == Mode::Cluster => {
                    live.give_up();
                    self.live.lock().await.owner = Some(on_same_host(node.clone(), &live));
                }
                CallError::Asked(_) if self.config.mode == Mode::Cluster => {}
                CallError::Moved(_) | CallError::Asked(_) => {
                    let what = format!("{} is a cluster; add the option `mode=cluster`", self.config.name);
                    return Err(Error::new(Kind::Unsupported, what));
                }
                CallError::Closed(_) if phase == Phase::Reading && !is_retried => {
                    live.give_up();
                    is_retried = true;
                }
                CallError::Closed(_) | CallError::Late(_) | CallError::Elsewhere(_) => {
                    // The next call finds the server again.
                    live.give_up();
                    return Err(error.into_error(&self.config.name));
                }
                CallError::Refused(_) => return Err(error.into_error(&self.config.name)),
            }
            last = Some(error);
        }
        Err(last.map_or_else(|| self.nobody(), |error| error.into_error(&self.config.name)))
    }

    /// One exchange: the command, and after it on the same connection the wait for the replicas.
    async fn send(
        &self,
        live: &Connection,
        command: Cmd,
        phase: Phase,
        confirm: Confirm,
        before: Option<Cmd>,
    ) -> Result<Value, CallError> {
        let wait = self.config.wait.filter(|_| confirm == Confirm::ByReplicas);
        if wait.is_none() && before.is_none() {
            let answer = live.connection.clone().send_packed_command(&command).await;
            return answer.and_then(Value::extract_error).map_err(|e| failed(e, phase, &self.config.name));
        }
        let mut pipeline: Pipeline = pipe();
        let at = usize::from(before.is_some());
        before.map(|command| pipeline.add_command(command));
        pipeline.add_command(command);
        if let Some(wait) = wait {
            pipeline.cmd("WAIT").arg(wait.replicas).arg(wait.ms);
        }
        let failed = |e| failed(e, phase, &self.config.name);
        let count = pipeline.len();
        let answers = live.connection.clone().send_packed_commands(&pipeline, 0, count).await.map_err(failed)?;
        let mut answers = answers.into_iter().skip(at);
        let answer = answers.next().unwrap_or(Value::Nil).extract_error().map_err(failed)?;
        let Some(wait) = wait else { return Ok(answer) };
        // A mismatch: nothing was written that could be lost.
        if answer == Value::Nil {
            return Ok(answer);
        }
        let name = &self.config.name;
        let kind = phase.unanswered();
        match answers.next().unwrap_or(Value::Nil).extract_error() {
            Ok(Value::Int(count)) if u64::try_from(count).is_ok_and(|count| count >= wait.replicas) => Ok(answer),
            Ok(Value::Int(count)) => {
                let what = format!("{count} of {} replicas of {name} confirmed within {} ms", wait.replicas, wait.ms);
                Err(CallError::Refused(Error::new(kind, what)))
            }
            Ok(_) => Err(CallError::Refused(Error::new(kind, format!("{name} does not understand WAIT")))),
            // The script was run, even if the wait failed.
            Err(e) => {
                let cause = failed(e).into_error(name);
                Err(CallError::Refused(
                    Error::new(kind, format!("{name} did not wait for its replicas")).with_source(cause),
                ))
            }
        }
    }

    /// The connection, or a new one if it is lost.
    async fn live(&self) -> Result<Arc<Connection>> {
        let mut found = self.live.lock().await;
        if let Some(live) = found.live.as_ref().filter(|live| !live.is_gone.load(Ordering::SeqCst)) {
            return Ok(live.clone());
        }
        found.live = None;
        let live = Arc::new(self.find(&mut found.owner).await?);
        let channels = self.watchers.channels();
        if !channels.is_empty() {
            let subscribed = live.connection.clone().subscribe(channels).await;
            // Without the permission to subscribe, watches stay silent.
            if let Err(error) = subscribed
                && let error @ (CallError::Closed(_) | CallError::Late(_)) =
                    failed(error, Phase::Connecting, &self.config.name)
            {
                return Err(error.into_error(&self.config.name));
            }
            self.watchers.hint_all();
        }
        found.live = Some(live.clone());
        Ok(live)
    }

    /// Connects to a server that may be the right one. If it is not, its answer says so.
    async fn find(&self, owner: &mut Option<Node>) -> Result<Connection> {
        let mut nodes: Vec<Node> = owner.take().into_iter().collect();
        match &self.config.mode {
            Mode::Sentinel(service) => nodes.push(self.primary(service).await?),
            Mode::Single | Mode::Cluster => nodes.extend(self.config.hosts.iter().cloned()),
        }
        let mut first = None;
        for node in nodes {
            match self.connect(&node).await {
                Ok(live) => return Ok(live),
                Err(error) => first = first.or(Some(error.into_error(&self.config.name))),
            }
        }
        Err(first.unwrap_or_else(|| self.nobody()))
    }

    async fn connect(&self, node: &Node) -> Result<Connection, CallError> {
        let name = &self.config.name;
        let client = self.config.client(node).map_err(CallError::Refused)?;
        let is_gone = Arc::new(AtomicBool::new(false));
        let (watchers, gone) = (self.watchers.clone(), is_gone.clone());
        let answer = ANSWER + Duration::from_millis(self.config.wait.map_or(0, |wait| wait.ms));
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(Some(answer))
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    gone.store(true, Ordering::SeqCst);
                }
                watchers.pushed(&push);
                Ok::<(), ::redis::aio::SendError>(())
            });
        match client.get_multiplexed_async_connection_with_config(&config).await {
            Ok(connection) => Ok(Connection { connection, node: node.clone(), is_gone }),
            Err(error) => Err(failed(error, Phase::Connecting, name)),
        }
    }

    /// The primary, according to the sentinels.
    async fn primary(&self, service: &str) -> Result<Node> {
        let found: Option<Node> =
            self.ask_sentinels(cmd("SENTINEL").arg("get-master-addr-by-name").arg(service).take()).await?;
        found.ok_or_else(|| {
            let what = format!("the sentinels of {} know no primary `{service}`; fix the url", self.config.name);
            Error::new(Kind::Unsupported, what)
        })
    }

    /// The answer of the first sentinel that gives one.
    pub(super) async fn ask_sentinels<T: FromRedisValue>(&self, question: Cmd) -> Result<T> {
        let mut cause = None;
        for node in &self.config.hosts {
            match ask(&self.config.sentinel(node)?, &question).await {
                Ok(answer) => return Ok(answer),
                Err(error) => cause = Some(failed(error, Phase::Connecting, &self.config.name)),
            }
        }
        Err(cause.map_or_else(|| self.nobody(), |error| error.into_error(&self.config.name)))
    }

    /// Sends a question to one node, such as a replica, on a connection of its own.
    pub(super) async fn ask_node<T: FromRedisValue>(&self, node: &Node, question: Cmd) -> Result<T> {
        let answer = ask(&self.config.client(node)?, &question).await;
        answer.map_err(|e| failed(e, Phase::Connecting, &self.config.name).into_error(&self.config.name))
    }

    fn nobody(&self) -> Error {
        Error::new(Kind::Unavailable, format!("{} names no server", self.config.name))
    }

    /// Gives this sender a hint when something is published on the channel. If subscribing fails now, it is retried.
    pub(super) async fn subscribe(self: &Arc<Self>, channel: &str, sender: Sender<()>) {
        let _turn = self.subscribing.lock().await;
        let added = self.watchers.add(channel, sender);
        if added.is_untended {
            tokio::spawn(tend(self.watchers.clone(), Arc::downgrade(self)));
        }
        // Already subscribed, or will be when the connection is reopened.
        if !added.is_first {
            return;
        }
        let subscribed = async {
            let Ok(live) = self.live().await else { return };
            if let Err(error) = live.connection.clone().subscribe(channel).await
                && let CallError::Closed(_) | CallError::Late(_) = failed(error, Phase::Reading, &self.config.name)
            {
                live.give_up();
            }
        };
        let _ = timeout(CALL, subscribed).await;
    }

    /// Drops channels that nobody watches any more and reopens a lost connection. False if nothing is watched.
    async fn look_after_watches(&self) -> bool {
        let turn = self.subscribing.lock().await;
        let (gone, is_watched) = self.watchers.prune();
        if !gone.is_empty()
            && let Some(live) = self.live.lock().await.live.clone()
        {
            let _ = timeout(ANSWER, live.connection.clone().unsubscribe(gone)).await;
        }
        drop(turn);
        if is_watched {
            let _ = timeout(CALL, self.live()).await;
        }
        is_watched
    }
}

/// Runs as long as anything is watched.
async fn tend(watchers: Arc<Watchers>, connections: Weak<Connections>) {
    loop {
        let _ = timeout(TENDING, watchers.unwanted.notified()).await;
        let Some(connections) = connections.upgrade() else { return };
        if !connections.look_after_watches().await {
            return;
        }
    }
}

/// One command on a connection of its own.
async fn ask<T: FromRedisValue>(client: &Client, question: &Cmd) -> ::redis::RedisResult<T> {
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT / 3)).set_response_timeout(Some(CONNECT / 3));
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    question.query_async(&mut connection).await
}

/// An empty host means the host that the answer came from.
fn on_same_host((host, port): Node, live: &Connection) -> Node {
    if host.is_empty() { (live.node.0.clone(), port) } else { (host, port) }
}
