//! `agents`: what the hosts of agents need in their settings, printed or merged into them.
//!
//! Promise: what is in a host's settings stays as it is, with its comments and its order; the difference is shown before anything is
//! written, and a file is replaced as a whole. Non-promise: a setting that says something else than ours is left, and said.

mod merge;

use crate::args::{Agents as Args, AgentsInstall, AgentsPrint, AgentsVerb, HookFlags, Host};
use crate::context::Context;
use crate::exit::Exit;
use crate::output;
use leasehold_core::{Error, Kind, Nonce, Result};
use merge::Merged;
use serde_json::{Value, json};
use similar::TextDiff;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// A file of a host's settings, and what is needed in it.
struct Snippet {
    /// Below the project's folder.
    path: &'static str,
    form: Form,
    text: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Json,
    Toml,
}

const fn snippet(path: &'static str, form: Form, text: &'static str) -> Snippet {
    Snippet { path, form, text }
}

const CLAUDE: &[Snippet] = &[
    snippet(".claude/settings.json", Form::Json, include_str!("snippets/claude-settings.json")),
    snippet(".mcp.json", Form::Json, include_str!("snippets/claude-mcp.json")),
];
const CODEX: &[Snippet] = &[snippet(".codex/config.toml", Form::Toml, include_str!("snippets/codex-config.toml"))];
const GEMINI: &[Snippet] =
    &[snippet(".gemini/settings.json", Form::Json, include_str!("snippets/gemini-settings.json"))];
const CURSOR: &[Snippet] = &[snippet(".cursor/mcp.json", Form::Json, include_str!("snippets/cursor-mcp.json"))];
const VSCODE: &[Snippet] = &[snippet(".vscode/mcp.json", Form::Json, include_str!("snippets/vscode-mcp.json"))];
const CRONTAB: &str = include_str!("snippets/crontab");

/// What a host's settings need; nothing for cron, whose lines are everybody's own.
const fn snippets(host: Host) -> &'static [Snippet] {
    match host {
        Host::Claude => CLAUDE,
        Host::Codex => CODEX,
        Host::Gemini => GEMINI,
        Host::Cursor => CURSOR,
        Host::Vscode => VSCODE,
        Host::Crontab => &[],
    }
}

/// What to know beside the settings.
const fn note(host: Host) -> &'static str {
    match host {
        Host::Claude => "then start sessions with `leasehold run NAME -- claude ...`",
        Host::Codex => {
            "Codex runs hooks of a project that it trusts, once they were reviewed with /hooks; then start sessions with `leasehold run \
             NAME -- codex ...`"
        }
        Host::Gemini => "then start sessions with `leasehold run NAME -- gemini ...`",
        Host::Cursor | Host::Vscode => {
            "no hook denies tools here: gate the MCP servers that write with `leasehold mcp-gate`, and guard what they write to"
        }
        Host::Crontab => "put such lines into the crontab of each machine",
    }
}

impl Snippet {
    fn text(&self, flags: &HookFlags) -> String {
        let mut text = self.text.to_owned();
        if flags.allow_unleased {
            for host in ["claude", "codex", "gemini"] {
                text =
                    text.replace(&format!("leasehold hook {host}"), &format!("leasehold hook {host} --allow-unleased"));
            }
        }
        text
    }
}

pub fn agents(context: &Context, args: &Args) -> Result<Exit> {
    match &args.verb {
        AgentsVerb::Print(args) => print(context, args),
        AgentsVerb::Install(args) => install(context, args),
    }
}

fn print(context: &Context, args: &AgentsPrint) -> Result<Exit> {
    let files: Vec<(&str, String)> = match args.host {
        Host::Crontab => vec![("crontab", CRONTAB.to_owned())],
        host => snippets(host).iter().map(|snippet| (snippet.path, snippet.text(&args.hook))).collect(),
    };
    let shown = context.print(
        || files.iter().map(|(path, text)| json!({ "path": path, "text": text })).collect(),
        || {
            let many = files.len() > 1;
            let one = |(path, text): &(&str, String)| if many { format!("# {path}\n{text}\n") } else { text.clone() };
            files.iter().map(one).collect::<String>().trim_end().to_owned() + "\n"
        },
    );
    if !context.common.json {
        let paths: Vec<String> = files.iter().map(|(path, _)| format!("`{path}`")).collect();
        output::say(&format!("for {}; {}", paths.join(" and "), note(args.host)));
    }
    shown
}

/// A file as it is and as it would be.
struct Change {
    path: PathBuf,
    before: Option<String>,
    merged: Merged,
}

fn install(context: &Context, args: &AgentsInstall) -> Result<Exit> {
    if args.host == Host::Crontab {
        let message = "a crontab is not installed: print lines for it with `leasehold agents print crontab`, and edit them with \
                       `crontab -e`";
        return Err(Error::new(Kind::Invalid, message));
    }
    let project = args.project.canonicalize().map_err(|e| {
        Error::new(Kind::Invalid, format!("cannot use --project `{}`", args.project.display())).with_source(e)
    })?;
    let changes: Vec<Change> =
        snippets(args.host).iter().map(|s| plan(&project, s, &args.hook)).collect::<Result<_>>()?;
    for (change, conflict) in changes.iter().flat_map(|c| c.merged.conflicts.iter().map(move |conflict| (c, conflict)))
    {
        output::say(&format!("`{}`: {conflict}", change.path.display()));
    }
    let wanted: Vec<&Change> = changes.iter().filter(|change| change.differs()).collect();
    if !context.common.json {
        output::print(&wanted.iter().map(|change| change.difference()).collect::<String>())?;
    }
    let (exit, is_written) = match wanted.len() {
        0 => (Exit::Done, false),
        _ if args.dry_run => (Exit::Done, false),
        count => {
            let files = if count == 1 { "1 file".to_owned() } else { format!("{count} files") };
            if !args.yes && !output::agreed(&format!("change {files} as shown"))? {
                output::say("nothing was changed");
                return Ok(Exit::Done);
            }
            wanted.iter().try_for_each(|change| change.write())?;
            (Exit::Done, true)
        }
    };
    let conflicts = changes.iter().any(|change| !change.merged.conflicts.is_empty());
    context.tell(
        || json!({ "files": changes.iter().map(|c| c.json(is_written)).collect::<Vec<_>>() }),
        || match (wanted.is_empty(), is_written) {
            (true, _) if conflicts => "nothing was changed; what was left is named above".to_owned(),
            (true, _) => "everything is there already; nothing was changed".to_owned(),
            (false, false) => "nothing was changed (--dry-run)".to_owned(),
            (false, true) if conflicts => "the rest was installed; what was left is named above".to_owned(),
            (false, true) => format!("installed; {}", note(args.host)),
        },
    )?;
    Ok(if conflicts { Exit::Misconfigured } else { exit })
}

fn plan(project: &Path, snippet: &Snippet, flags: &HookFlags) -> Result<Change> {
    let path = project.join(snippet.path);
    // What is behind a link is changed, not the link.
    let path = match path.canonicalize() {
        Ok(path) => path,
        Err(_) if path.is_symlink() => {
            let message = format!("`{}` is a link that leads nowhere; nothing was changed", path.display());
            return Err(Error::new(Kind::Unsupported, message));
        }
        Err(_) => path,
    };
    if path.exists() && !path.is_file() {
        return Err(Error::new(
            Kind::Unsupported,
            format!("`{}` is not a plain file; nothing was changed", path.display()),
        ));
    }
    let before = match std::fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => {
            let message = format!("cannot read `{}`; nothing was changed", path.display());
            return Err(Error::new(Kind::Unsupported, message).with_source(error));
        }
    };
    let ours = snippet.text(flags);
    let theirs = before.as_deref().filter(|text| !text.trim().is_empty());
    let merged = match (theirs, snippet.form) {
        (None, _) => Ok(Merged { text: ours, conflicts: Vec::new() }),
        (Some(theirs), Form::Json) => merge::json(theirs, &ours),
        (Some(theirs), Form::Toml) => merge::toml(theirs, &ours),
    };
    let merged = merged.map_err(|what| {
        let message = format!(
            "cannot merge into `{}`: {what}; nothing was changed. Fix it, or add by hand what `leasehold agents print` prints",
            path.display()
        );
        Error::new(Kind::Invalid, message)
    })?;
    Ok(Change { path, before, merged })
}

impl Change {
    fn differs(&self) -> bool {
        self.before.as_ref() != Some(&self.merged.text)
    }

    fn difference(&self) -> String {
        let (before, path) = (self.before.as_deref().unwrap_or_default(), self.path.display().to_string());
        let from = if self.before.is_some() { path.as_str() } else { "/dev/null" };
        TextDiff::from_lines(before, &self.merged.text).unified_diff().header(from, &path).to_string()
    }

    fn write(&self) -> Result<()> {
        let cannot = |e: std::io::Error| {
            Error::new(Kind::Unavailable, format!("cannot write `{}`", self.path.display())).with_source(e)
        };
        let folder = self.path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(cannot)?;
        // Somebody may have saved it while the difference was read.
        let now = std::fs::read_to_string(&self.path).ok();
        if now != self.before {
            let message =
                format!("`{}` was changed meanwhile; it was left as it is. Run this again", self.path.display());
            return Err(Error::new(Kind::Contended, message));
        }
        let new = folder.join(format!(".leasehold-{}", Nonce::random()));
        let replaced = self.put(&new).and_then(|()| std::fs::rename(&new, &self.path)).map_err(cannot);
        if replaced.is_err() {
            let _ = std::fs::remove_file(&new);
        }
        replaced
    }

    fn put(&self, new: &Path) -> std::io::Result<()> {
        let mut file = File::create_new(new)?;
        file.write_all(self.merged.text.as_bytes())?;
        if let Ok(theirs) = std::fs::metadata(&self.path) {
            file.set_permissions(theirs.permissions())?;
        }
        file.sync_all()
    }

    fn json(&self, is_written: bool) -> Value {
        json!({
            "path": self.path.display().to_string(),
            "differs": self.differs(),
            "written": is_written && self.differs(),
            "conflicts": self.merged.conflicts,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn every_snippet_is_of_its_form_and_merging_it_twice_changes_nothing() {
        for host in Host::value_variants() {
            for snippet in snippets(*host) {
                for allow_unleased in [false, true] {
                    let ours = snippet.text(&HookFlags { allow_unleased });
                    assert_eq!(allow_unleased && ours.contains("hook "), ours.contains("--allow-unleased"), "{ours}");
                    let merge = if snippet.form == Form::Json { merge::json } else { merge::toml };
                    let empty = if snippet.form == Form::Json { "{}" } else { "" };
                    let once = merge(empty, &ours).unwrap();
                    let twice = merge(&once.text, &ours).unwrap();
                    assert_eq!((once.conflicts.len(), twice.conflicts.len()), (0, 0));
                    assert_eq!(once.text, twice.text, "{}", snippet.path);
                }
            }
        }
    }
}
