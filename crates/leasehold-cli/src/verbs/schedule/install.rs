//! `schedule install --print`: a service file for `leasehold schedule`. It is printed, never installed.
//!
//! Promise: the service uses the store that this command was given; no password is printed, since others may read such
//! files. Non-promise: other settings that are only in this shell's environment are not in it; they are named.

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
    output::print(&match args.kind.as_deref().unwrap_or(usual) {
        "launchd" => launchd(&words),
        _ => systemd(&words),
    })?;
    for name in ENVIRONMENT.iter().filter(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty())) {
        output::say(&format!("the service will not have this shell's {name}; set it in the file or in the service"));
    }
    Ok(Exit::Done)
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
fn systemd(words: &[String]) -> String {
    // Those that need no quotes have none.
    let is_plain = |word: &str| word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
    let quoted = |word: &String| {
        if is_plain(word) {
            return word.clone();
        }
        let escaped = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
        format!("\"{escaped}\"")
    };
    format!(
        "# Put into ~/.config/systemd/user/leasehold.service, then: systemctl --user enable --now leasehold
[Unit]
Description=Scheduled jobs under leases
After=network-online.target

[Service]
Type=exec
ExecStart={}
ExecReload=/bin/kill -HUP $MAINPID
# Runs that are still running may finish; those of a killed scheduler end by themselves.
KillMode=mixed
TimeoutStopSec=15min
Restart=always
RestartSec=5

[Install]
WantedBy=default.target
",
        words.iter().map(quoted).collect::<Vec<_>>().join(" ")
    )
}

fn launchd(words: &[String]) -> String {
    let escaped = |word: &String| word.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>
<!-- Put into ~/Library/LaunchAgents/leasehold.schedule.plist, then: launchctl load -w that file -->
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
    )
}
