//! What each host sends to a hook, and how it wants to be answered.
//!
//! Written from the hosts' documentation; docs/agents.md says what was not run with the real host.

use crate::args::HookHost;
use serde::Deserialize;
use serde_json::{Value, json};

/// The event that a host calls a hook for.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// A tool is about to be called.
    Before(String),
    /// A tool was called.
    After(String),
    /// Something that a lease has no say in.
    Other,
}

/// Whether the tool may be called.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Allow,
    /// The call is refused, for this reason.
    Deny(String),
}

/// What all hosts have in common; the rest may be large, and is not looked at.
#[derive(Deserialize)]
struct Sent {
    hook_event_name: String,
    tool_name: Option<String>,
}

/// Events without a tool call.
const OTHERS: [&str; 24] = [
    "SessionStart",
    "SessionEnd",
    "Setup",
    "UserPromptSubmit",
    "Stop",
    "StopFailure",
    "SubagentStart",
    "SubagentStop",
    "PreCompact",
    "PostCompact",
    "PreCompress",
    "Notification",
    "PermissionRequest",
    "PermissionDenied",
    "Interrupt",
    "BeforeAgent",
    "AfterAgent",
    "BeforeModel",
    "AfterModel",
    "BeforeToolSelection",
    "ConfigChange",
    "CwdChanged",
    "FileChanged",
    "TaskCompleted",
];

impl HookHost {
    /// The event, or what is wrong with it.
    pub fn parse(self, bytes: &[u8]) -> Result<Event, String> {
        // serde also accepts an array for a struct, but no host sends one.
        if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
            return Err("it is not a JSON object".into());
        }
        let sent: Sent = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        let name = sent.hook_event_name.as_str();
        let (before, after): (&str, &[&str]) = match self {
            HookHost::Claude | HookHost::Codex => ("PreToolUse", &["PostToolUse", "PostToolUseFailure"]),
            HookHost::Gemini => ("BeforeTool", &["AfterTool"]),
        };
        let tool = || sent.tool_name.clone().filter(|tool| !tool.is_empty()).ok_or("it names no tool");
        match name {
            _ if name == before => Ok(Event::Before(tool()?)),
            _ if after.contains(&name) => Ok(Event::After(tool()?)),
            _ if OTHERS.contains(&name) => Ok(Event::Other),
            _ => Err(format!("`{}` is no event that this hook knows", leasehold_core::printable(name))),
        }
    }

    /// What the host reads on our standard output.
    ///
    /// Allowing is left to the host: it may still ask a person.
    pub fn answer(self, verdict: &Verdict) -> Value {
        match (verdict, self) {
            (Verdict::Allow, _) => json!({}),
            (Verdict::Deny(reason), HookHost::Claude | HookHost::Codex) => json!({
                "hookSpecificOutput": {
                    "hookEventName": "PreToolUse",
                    "permissionDecision": "deny",
                    "permissionDecisionReason": reason,
                }
            }),
            (Verdict::Deny(reason), HookHost::Gemini) => json!({ "decision": "deny", "reason": reason }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_has_its_own_names_for_the_same_events() {
        let event = |name: &str| json!({ "hook_event_name": name, "tool_name": "Bash", "tool_input": {} }).to_string();
        for (host, before, after, foreign) in [
            (HookHost::Claude, "PreToolUse", "PostToolUse", "BeforeTool"),
            (HookHost::Codex, "PreToolUse", "PostToolUse", "AfterTool"),
            (HookHost::Gemini, "BeforeTool", "AfterTool", "PreToolUse"),
        ] {
            assert_eq!(host.parse(event(before).as_bytes()), Ok(Event::Before("Bash".into())));
            assert_eq!(host.parse(event(after).as_bytes()), Ok(Event::After("Bash".into())));
            assert_eq!(host.parse(event("SessionStart").as_bytes()), Ok(Event::Other));
            assert!(host.parse(event(foreign).as_bytes()).is_err());
        }
        for wrong in [
            "",
            "{",
            "[]",
            "null",
            r#"["Stop",null]"#,
            r#"{"hook_event_name":"PreToolUse"}"#,
            r#"{"tool_name":"Bash"}"#,
        ] {
            assert!(HookHost::Claude.parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
