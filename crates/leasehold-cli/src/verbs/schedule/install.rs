//! `schedule install`: a service file for `leasehold schedule`, written or printed. Nothing is started.
//!
//! Promise: the service uses the store that this command was given; no password is in it, since others may read such
//! files; a file that says something else is not written over unasked. Non-promise: other settings that are only in this
//! shell's environment are not in it; they are named.

use super::daemon::LABELS;
use crate::args::Install;
use crate::config::{Settings, Source};
use crate::exit::Exit;
use crate::output;
use leasehold_core::{Error, Kind, Result};
use std::path::Path;

/// Settings that a service does not have from a shell's environment.
const ENVIRONMENT: [&str; 4] = ["LEASEHOLD_TTL", "LEASEHOLD_LABEL", "LEASEHOLD_GRACE", LABELS];

pub fn install(args: &Install, file: &Path, settings: &Settings) -> Result<Exit> {
    let program = std::env::current_exe()
        .map_err(|e| Error::new(Kind::Unsupported, "cannot tell where this program is").with_source(e))?;
    let usual = if cfg!(target_os = "macos") { "launchd" } else { "systemd" };
    let text = |path: &Path| {
        path.to_str()
            .filter(|path| !path.chars().any(char::is_control))
            .map(String::from)
            .ok_or_else(|| Error::new(Kind::Unsupported, format!("path `{}` is not plain text", path.display())))
    };
    let mut words = vec![text(&program)?, "schedule".into(), "--file".into(), text(file)?];
    if let Some(store) = store(settings, file)? {
        words.extend(["--store".into(), store]);
    }
    words.push("run".into());
    let service = match args.kind.as_deref().unwrap_or(usual) {
        "launchd" => launchd(&words),
        _ => systemd(&words),
    };
    if args.print {
        output::print(&service.text)?;
    } else {
        write(&service, args.force)?;
    }
    for name in ENVIRONMENT.iter().filter(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty())) {
        output::say(&format!("the service will not have this shell's {name}; set it in the file or in the service"));
    }
    Ok(Exit::Done)
}

/// A service file: what is in it, where it goes, and what makes it start.
struct Service {
    text: String,
    path: &'static str,
    next: &'static str,
}

fn write(service: &Service, force: bool) -> Result<()> {
    let home = std::env::var_os("HOME").filter(|home| Path::new(home).is_absolute());
    let home = home.ok_or_else(|| Error::new(Kind::Unsupported, "there is no HOME to write it to; use --print"))?;
    let path = Path::new(&home).join(service.path);
    let shown = path.display();
    let cannot = |e| Error::new(Kind::Unsupported, format!("cannot write `{shown}`")).with_source(e);
    match std::fs::read_to_string(&path) {
        Ok(text) if text == service.text => {
            output::say(&format!("`{shown}` is as it should be; {}", service.next));
            return Ok(());
        }
        Ok(_) if !force => {
            let message = format!("`{shown}` says something else; see `--print`, and write over it with --force");
            return Err(Error::new(Kind::Invalid, message));
        }
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(cannot(e)),
        _ => {}
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(cannot)?;
    }
    std::fs::write(&path, &service.text).map_err(cannot)?;
    output::say(&format!("wrote `{shown}`; {}", service.next));
    Ok(())
}

/// The store to name in the service: one that neither the file nor the user's settings tell it.
fn store(settings: &Settings, file: &Path) -> Result<Option<String>> {
    let url = &settings.store.value;
    if !matches!(settings.store.source, Source::Flag | Source::Environment(_)) {
        return Ok(None);
    }
    // What is hidden from people is not for a file that everybody may read.
    if url.portable() != url.to_string() {
        let message = format!(
            "the address of the store (from {}) has a secret in it, and others may read service files; put `store = \"...\"` \
             into `{}`, closed to others, and call this without it",
            settings.store.source,
            file.display()
        );
        return Err(Error::new(Kind::Invalid, message));
    }
    Ok(Some(url.portable()))
}

/// Within double quotes systemd expands specifiers and escapes.
fn systemd(words: &[String]) -> Service {
    // Those that need no quotes have none.
    let is_plain = |word: &str| word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
    let quoted = |word: &String| {
        if is_plain(word) {
            return word.clone();
        }
        let escaped = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
        format!("\"{escaped}\"")
    };
    let text = format!(
        "# ~/.config/systemd/user/leasehold.service, for: systemctl --user enable --now leasehold
[Unit]
Description=Scheduled jobs under leases
After=network-online.target

[Service]
# Ready once the store answers; restarted if the scheduler hangs (see WatchdogSec).
Type=notify
NotifyAccess=main
WatchdogSec=3min
ExecStart={}
ExecReload=/bin/kill -HUP $MAINPID
# When it is stopped or restarted, runs that are under way may finish. Those of a scheduler that died are killed with it.
KillMode=mixed
TimeoutStopSec=15min
Restart=always
RestartSec=5

[Install]
WantedBy=default.target
",
        words.iter().map(quoted).collect::<Vec<_>>().join(" ")
    );
    let next = "start it with: systemctl --user daemon-reload && systemctl --user enable --now leasehold (and, to keep it \
                running without a login: loginctl enable-linger)";
    Service { text, path: ".config/systemd/user/leasehold.service", next }
}

fn launchd(words: &[String]) -> Service {
    let escaped = |word: &String| word.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>
<!-- ~/Library/LaunchAgents/leasehold.schedule.plist, for: launchctl load -w that file -->
<!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">
<plist version=\"1.0\">
<dict>
  <key>Label</key><string>leasehold.schedule</string>
  <key>ProgramArguments</key>
  <array>
{}
  </array>
  <key>RunAtLoad</key><true/>
  <key>KeepAlive</key><true/>
  <key>ExitTimeOut</key><integer>900</integer>
</dict>
</plist>
",
        words.iter().map(|word| format!("    <string>{}</string>", escaped(word))).collect::<Vec<_>>().join("\n")
    );
    let next = "start it with: launchctl load -w ~/Library/LaunchAgents/leasehold.schedule.plist";
    Service { text, path: "Library/LaunchAgents/leasehold.schedule.plist", next }
}
