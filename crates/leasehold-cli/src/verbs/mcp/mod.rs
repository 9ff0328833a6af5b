//! `mcp`: an MCP server on standard input and output, so that any MCP client can coordinate.
//!
//! Promise: each request is answered once, in one line, in the generation of the protocol that it speaks; a tool's failure
//! is a result with its kind; what was acquired in a session is renewed until it is released or the input ends, and is then
//! given back, and so are items that were claimed; calls that name the same lease or item are carried out in the order in
//! which they came. Non-promise: requests are answered in the order in which they finish. What was acquired without a
//! session is neither renewed nor given back: the client may start another server for the next call, and has the token.

mod era;
mod files;
mod leases;
mod rpc;
mod schemas;
mod session;
mod table;
mod tools;
mod turns;
mod verbs;

use crate::args::Mcp as Args;
use crate::context::Context;
use crate::exit::Exit;
use crate::output;
use crate::supervise::Signals;
use era::Era;
use leasehold_core::{Error, Kind, Result};
use leasehold_system::sync::Mutex;
use rpc::Reply;
use serde_json::{Value, json};
use session::Session;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::task::JoinSet;
use tools::Call;

/// The longest request.
const MAX_LINE: usize = 4 * 1024 * 1024;
/// How long calls that are under way may take when the input has ended.
const LAST_CALLS: Duration = Duration::from_secs(5);
/// Requests under way at once; more wait in the pipe.
const MAX_CALLS: usize = 64;

type Running = Arc<Mutex<HashMap<String, tokio::task::AbortHandle>>>;

pub async fn mcp(context: &Arc<Context>, args: &Args) -> Result<Exit> {
    let root = args.root.canonicalize().map_err(|e| {
        Error::new(Kind::Invalid, format!("cannot use --root `{}`", args.root.display())).with_source(e)
    })?;
    let session = Arc::new(Session::new(context.clone(), context.coordinator().await?.clone(), root));
    let mut signals = Signals::listen_to_ending()?;
    let exit = tokio::select! {
        served = serve(&session) => served.map(|()| Exit::Done),
        number = signals.next_ending() => Ok(Exit::by_signal(number)),
    };
    session.give_back().await;
    exit
}

async fn serve(session: &Arc<Session>) -> Result<()> {
    let mut input = BufReader::with_capacity(64 * 1024, tokio::io::stdin());
    let mut calls = JoinSet::new();
    let running = Running::default();
    let mut line = Vec::new();
    loop {
        while calls.try_join_next().is_some() {}
        if calls.len() >= MAX_CALLS {
            calls.join_next().await;
        }
        line.clear();
        let read = (&mut input).take(MAX_LINE as u64 + 1).read_until(b'\n', &mut line).await;
        if read.map_err(|e| Error::unavailable("cannot read standard input", e))? == 0 {
            break;
        }
        if line.len() > MAX_LINE && !line.ends_with(b"\n") {
            skip_line(&mut input).await?;
            let message = format!("a line of more than {MAX_LINE} bytes");
            send(&Reply::error(Value::Null, rpc::INVALID_REQUEST, &message).json())?;
            continue;
        }
        match rpc::parse(&line) {
            Ok(messages) => {
                for message in messages {
                    // Those of a batch are answered one by one, which clients of every version understand.
                    if let Some(reply) = handle(session, &running, &mut calls, message)? {
                        send(&reply.json())?;
                    }
                }
            }
            Err(reply) => send(&reply.json())?,
        }
    }
    // Nobody is there any more who could wait for long.
    let _ = tokio::time::timeout(LAST_CALLS, async { while calls.join_next().await.is_some() {} }).await;
    Ok(())
}

async fn skip_line(input: &mut (impl AsyncBufReadExt + Unpin)) -> Result<()> {
    loop {
        let buffer = input.fill_buf().await.map_err(|e| Error::unavailable("cannot read standard input", e))?;
        let found = buffer.iter().position(|byte| *byte == b'\n');
        let used = found.map_or(buffer.len(), |at| at + 1);
        let end = buffer.is_empty() || found.is_some();
        input.consume(used);
        if end {
            return Ok(());
        }
    }
}

fn send(value: &Value) -> Result<()> {
    output::print(&format!("{value}\n"))
}

/// Answers what needs no waiting; a tool's call is begun and answers for itself.
fn handle(
    session: &Arc<Session>,
    running: &Running,
    calls: &mut JoinSet<()>,
    message: rpc::Message,
) -> Result<Option<Reply>> {
    let rpc::Message { id, method, params } = message;
    let Some(id) = id else {
        if method == "notifications/cancelled" {
            let key = params.get("requestId").map(Value::to_string).unwrap_or_default();
            if let Some(call) = running.lock().remove(&key) {
                call.abort();
            }
        }
        return Ok(None);
    };
    let era = match Era::of(&id, &method, &params) {
        Ok(era) => era,
        Err(reply) => return Ok(Some(reply)),
    };
    let result = match (method.as_str(), era) {
        ("initialize", Era::Session) => era::initialize(&params),
        ("ping", Era::Session) => json!({}),
        ("server/discover", Era::Stateless) => era.shape_lasting(era::discover()),
        ("tools/list", _) => era.shape_lasting(json!({ "tools": tools::list(era) })),
        ("tools/call", _) => {
            let name = params.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
            let Some(tool) = table::find(&name) else {
                let message = format!("unknown tool `{}`; see tools/list", leasehold_core::printable(&name));
                return Ok(Some(Reply::error(id, rpc::INVALID_PARAMS, &message)));
            };
            let arguments = params.get("arguments").cloned().unwrap_or_else(|| json!({}));
            let (session, running_too, key) = (session.clone(), running.clone(), id.to_string());
            let mut turn = session.turns.stand(&arguments);
            let mut table = running.lock();
            let call = calls.spawn(async move {
                turn.comes().await;
                let result = tools::call(tool, &Call { session: &session, arguments: &arguments, era }).await;
                running_too.lock().remove(&id.to_string());
                let _ = send(&Reply::result(id, era.shape(result)).json());
            });
            table.insert(key, call);
            return Ok(None);
        }
        _ => {
            let message = format!("unknown method `{}`", leasehold_core::printable(&method));
            return Ok(Some(Reply::error(id, rpc::METHOD_NOT_FOUND, &message)));
        }
    };
    Ok(Some(Reply::result(id, result)))
}
