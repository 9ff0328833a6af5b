//! The connection to the one server that has this namespace: found, kept, and found again.
//!
//! Promise: a write is sent at most once, unless the server answered that it did not run it; every call ends in time.
//! Non-promise: nothing is retried but what surely was not done, and a read whose connection was gone. The driver's own
//! cluster and sentinel clients are not used, because they retry by themselves and cannot put `WAIT` on the connection
//! of the write: one namespace is one slot, so one connection is enough.

use super::config::{Config, Mode, Node};
use super::error::{Failure, judge};
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

/// How long one connection may take to be made.
const CONNECT: Duration = Duration::from_secs(3);
/// How long one answer may take, beside the time that replicas are given.
const ANSWER: Duration = Duration::from_secs(4);
/// How long a whole call may take.
const CALL: Duration = Duration::from_secs(10);
/// How often a call follows where it is sent on to.
const HOPS: usize = 6;
/// How often a lost connection is looked for again while somebody watches.
const TENDING: Duration = Duration::from_secs(1);

/// What is asked of the server.
pub(super) enum Call<'a> {
    /// A script with its keys and arguments.
    Script { script: &'static Lua, keys: &'a [String], args: &'a [&'a [u8]] },
    /// A command, for surveys.
    Command(Cmd),
}

impl Call<'_> {
    /// As it is sent: the script by its digest, or whole where the server does not have it.
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

/// Whether replicas are waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Confirm {
    /// As the address says.
    ByReplicas,
    /// Not at all.
    No,
}

/// A connection that stood when it was last used.
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

/// What is known of the way to the server, and the connection that is in use.
pub(super) struct Connections {
    pub(super) config: Config,
    watchers: Arc<Watchers>,
    live: Mutex<Current>,
    /// Subscriptions change one at a time, so that none is undone while it is made.
    subscribing: Mutex<()>,
}

#[derive(Default)]
struct Current {
    live: Option<Arc<Connection>>,
    /// The node of a cluster that was last said to have the slot.
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

    /// Asks the server, and gives its answer. An error says whether it can have been done.
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

    /// Goes where the servers send us, until one answers.
    async fn follow(&self, call: &Call<'_>, phase: Phase, confirm: Confirm, sent: &AtomicBool) -> Result<Value> {
        let (mut is_whole, mut is_retried, mut last) = (false, false, None);
        for _ in 0..HOPS {
            // Whatever was sent before was answered with where else to go.
            sent.store(false, Ordering::SeqCst);
            let live = self.live().await?;
            sent.store(true, Ordering::SeqCst);
            let answer = self.send(&live, call.command(is_whole), phase, confirm, None).await;
            let failure = match answer {
                Ok(value) => return Ok(value),
                Err(Failure::Asked(node)) if self.config.mode == Mode::Cluster => {
                    let beside =
                        self.connect(&on_same_host(node, &live)).await.map_err(|t| t.into_error(&self.config.name))?;
                    // The script whole: a node that is just getting the slot may not have it.
                    match self.send(&beside, call.command(true), phase, confirm, Some(cmd("ASKING"))).await {
                        Ok(value) => return Ok(value),
                        Err(failure) => failure,
                    }
                }
                Err(failure) => failure,
            };
            match &failure {
                Failure::NoScript => is_whole = true,
                Failure::Moved(node) if self.config.mode == Mode::Cluster => {
                    live.give_up();
                    self.live.lock().await.owner = Some(on_same_host(node.clone(), &live));
                }
                Failure::Asked(_) if self.config.mode == Mode::Cluster => {}
                Failure::Moved(_) | Failure::Asked(_) => {
                    let what = format!("{} is a cluster; add the option `mode=cluster`", self.config.name);
                    return Err(Error::new(Kind::Unsupported, what));
                }
                Failure::Closed(_) if phase == Phase::Reading && !is_retried => {
                    live.give_up();
                    is_retried = true;
                }
                Failure::Closed(_) | Failure::Late(_) | Failure::Elsewhere(_) => {
                    // The next call looks for the server anew.
                    live.give_up();
                    return Err(failure.into_error(&self.config.name));
                }
                Failure::Refused(_) => return Err(failure.into_error(&self.config.name)),
            }
            last = Some(failure);
        }
        Err(last.map_or_else(|| self.nobody(), |failure| failure.into_error(&self.config.name)))
    }

    /// One exchange: the command, and after it on the same connection the wait for the replicas.
    async fn send(
        &self,
        live: &Connection,
        command: Cmd,
        phase: Phase,
        confirm: Confirm,
        before: Option<Cmd>,
    ) -> Result<Value, Failure> {
        let wait = self.config.wait.filter(|_| confirm == Confirm::ByReplicas);
        if wait.is_none() && before.is_none() {
            let answer = live.connection.clone().send_packed_command(&command).await;
            return answer.and_then(Value::extract_error).map_err(|e| judge(e, phase, &self.config.name));
        }
        let mut pipeline: Pipeline = pipe();
        let at = usize::from(before.is_some());
        before.map(|command| pipeline.add_command(command));
        pipeline.add_command(command);
        if let Some(wait) = wait {
            pipeline.cmd("WAIT").arg(wait.replicas).arg(wait.ms);
        }
        let failed = |e| judge(e, phase, &self.config.name);
        let count = pipeline.len();
        let answers = live.connection.clone().send_packed_commands(&pipeline, 0, count).await.map_err(failed)?;
        let mut answers = answers.into_iter().skip(at);
        let answer = answers.next().unwrap_or(Value::Nil).extract_error().map_err(failed)?;
        let Some(wait) = wait else { return Ok(answer) };
        // A swap of another record than was expected: nothing was written that could be lost.
        if answer == Value::Nil {
            return Ok(answer);
        }
        let name = &self.config.name;
        let kind = phase.unanswered();
        match answers.next().unwrap_or(Value::Nil).extract_error() {
            Ok(Value::Int(count)) if u64::try_from(count).is_ok_and(|count| count >= wait.replicas) => Ok(answer),
            Ok(Value::Int(count)) => {
                let what = format!("{count} of {} replicas of {name} confirmed within {} ms", wait.replicas, wait.ms);
                Err(Failure::Refused(Error::new(kind, what)))
            }
            Ok(_) => Err(Failure::Refused(Error::new(kind, format!("{name} does not understand WAIT")))),
            // The script before it was run, whatever became of the wait.
            Err(e) => {
                let cause = failed(e).into_error(name);
                Err(Failure::Refused(
                    Error::new(kind, format!("{name} did not wait for its replicas")).with_source(cause),
                ))
            }
        }
    }

    /// The connection, or a new one if it is gone.
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
            // If it may not subscribe, watches stay silent.
            if let Err(error) = subscribed
                && let failure @ (Failure::Closed(_) | Failure::Late(_)) =
                    judge(error, Phase::Connecting, &self.config.name)
            {
                return Err(failure.into_error(&self.config.name));
            }
            self.watchers.hint_all();
        }
        found.live = Some(live.clone());
        Ok(live)
    }

    /// Looks for a server that may be the right one; if it is not, it will say so.
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
                Err(failure) => first = first.or(Some(failure.into_error(&self.config.name))),
            }
        }
        Err(first.unwrap_or_else(|| self.nobody()))
    }

    async fn connect(&self, node: &Node) -> Result<Connection, Failure> {
        let name = &self.config.name;
        let client = self.config.client(node).map_err(Failure::Refused)?;
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
            Err(error) => Err(judge(error, Phase::Connecting, name)),
        }
    }

    /// Where the primary is.
    async fn primary(&self, service: &str) -> Result<Node> {
        let found: Option<Node> =
            self.ask_sentinels(cmd("SENTINEL").arg("get-master-addr-by-name").arg(service).take()).await?;
        found.ok_or_else(|| {
            let what = format!("the sentinels of {} know no primary `{service}`; mend the url", self.config.name);
            Error::new(Kind::Unsupported, what)
        })
    }

    /// The answer of the first sentinel that gives one.
    pub(super) async fn ask_sentinels<T: FromRedisValue>(&self, question: Cmd) -> Result<T> {
        let mut cause = None;
        for node in &self.config.hosts {
            match ask(&self.config.sentinel(node)?, &question).await {
                Ok(answer) => return Ok(answer),
                Err(error) => cause = Some(judge(error, Phase::Connecting, &self.config.name)),
            }
        }
        Err(cause.map_or_else(|| self.nobody(), |failure| failure.into_error(&self.config.name)))
    }

    /// Asks one node, such as a replica, on a connection of its own.
    pub(super) async fn ask_node<T: FromRedisValue>(&self, node: &Node, question: Cmd) -> Result<T> {
        let answer = ask(&self.config.client(node)?, &question).await;
        answer.map_err(|e| judge(e, Phase::Connecting, &self.config.name).into_error(&self.config.name))
    }

    fn nobody(&self) -> Error {
        Error::new(Kind::Unavailable, format!("{} names no server", self.config.name))
    }

    /// Hints this sender when something is published on the channel. If that cannot be had now, it is tried again.
    pub(super) async fn subscribe(self: &Arc<Self>, channel: &str, sender: Sender<()>) {
        let _turn = self.subscribing.lock().await;
        let added = self.watchers.add(channel, sender);
        if added.is_untended {
            tokio::spawn(tend(self.watchers.clone(), Arc::downgrade(self)));
        }
        // One that was watched a moment ago is still subscribed to, or is when the connection is made anew.
        if !added.is_first {
            return;
        }
        let subscribed = async {
            let Ok(live) = self.live().await else { return };
            if let Err(error) = live.connection.clone().subscribe(channel).await
                && let Failure::Closed(_) | Failure::Late(_) = judge(error, Phase::Reading, &self.config.name)
            {
                live.give_up();
            }
        };
        let _ = timeout(CALL, subscribed).await;
    }

    /// Drops what nobody watches any more and finds a lost connection again. False if nobody watches.
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

/// Runs as long as somebody watches.
async fn tend(watchers: Arc<Watchers>, connections: Weak<Connections>) {
    loop {
        let _ = timeout(TENDING, watchers.unwanted.notified()).await;
        let Some(connections) = connections.upgrade() else { return };
        if !connections.look_after_watches().await {
            return;
        }
    }
}

/// One question on a connection that is not kept.
async fn ask<T: FromRedisValue>(client: &Client, question: &Cmd) -> ::redis::RedisResult<T> {
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT / 3)).set_response_timeout(Some(CONNECT / 3));
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    question.query_async(&mut connection).await
}

/// A node that does not know its own host is told as nothing: it is where the answer came from.
fn on_same_host((host, port): Node, live: &Connection) -> Node {
    if host.is_empty() { (live.node.0.clone(), port) } else { (host, port) }
}
