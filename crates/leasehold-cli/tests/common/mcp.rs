//! A client of the MCP server or the MCP gate, line by line.

use super::{Home, PATIENCE};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// A client of a server on standard input and output.
pub struct Client {
    pub child: Child,
    pub input: Option<ChildStdin>,
    pub lines: Receiver<String>,
    pub next: u64,
}

impl Client {
    pub fn start(home: &Home, args: &[&str], token: Option<&str>) -> Self {
        let mut command = home.leasehold(args);
        if let Some(token) = token {
            command.env("LEASEHOLD_TOKEN", token);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (sender, lines) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let input = child.stdin.take();
        Client { child, input, lines, next: 1 }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().unwrap();
        input.write_all(bytes).unwrap();
        input.flush().unwrap();
    }

    #[track_caller]
    pub fn line(&self) -> Value {
        let line = self.lines.recv_timeout(PATIENCE).expect("an answer");
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("not JSON: {e}: {line:?}"))
    }

    #[track_caller]
    pub fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.next;
        self.next += 1;
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.send(format!("{line}\n").as_bytes());
        let answer = self.line();
        assert_eq!(answer["id"], json!(id), "{answer}");
        assert_eq!(answer["jsonrpc"], "2.0");
        answer
    }

    #[track_caller]
    pub fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({ "name": tool, "arguments": arguments }))["result"].clone()
    }

    pub fn shake_hands(&mut self) {
        let answer = self.ask(
            "initialize",
            json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } }),
        );
        assert_eq!(answer["result"]["protocolVersion"], "2025-06-18", "{answer}");
        assert!(answer["result"]["capabilities"]["tools"].is_object(), "{answer}");
        self.send(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n");
    }

    /// A call as a client of 2026-07-28 makes it.
    #[track_caller]
    pub fn call_alone(&mut self, tool: &str, arguments: Value) -> Value {
        let answer = self.ask("tools/call", alone(json!({ "name": tool, "arguments": arguments })))["result"].clone();
        assert_eq!(answer["resultType"], "complete", "{answer}");
        answer
    }

    /// Ends the input, and gives the exit code.
    pub fn end(&mut self) -> Option<i32> {
        self.input = None;
        self.child.wait().unwrap().code()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
pub const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// Parameters as a client of 2026-07-28 sends them, without a handshake.
pub fn alone(mut params: Value) -> Value {
    params["_meta"] = json!({ VERSION: "2026-07-28", CAPABILITIES: {} });
    params
}
