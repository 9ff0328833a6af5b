//! `schedule install --print`: a service file for `leasehold schedule`. It is printed, never installed.

use crate::args::Install;
use crate::exit::Exit;
use crate::output;
use leasehold::{Error, Kind, Result};
use std::path::Path;

pub fn install(args: &Install, file: &Path) -> Result<Exit> {
    let program = std::env::current_exe()
        .map_err(|e| Error::new(Kind::Unsupported, "cannot tell where this program is").with_source(e))?;
    let usual = if cfg!(target_os = "macos") { "launchd" } else { "systemd" };
    let text = |path: &Path| {
        path.to_str()
            .filter(|path| !path.chars().any(char::is_control))
            .map(String::from)
            .ok_or_else(|| Error::new(Kind::Unsupported, format!("path `{}` is not plain text", path.display())))
    };
    let (program, file) = (text(&program)?, text(file)?);
    output::print(&match args.kind.as_deref().unwrap_or(usual) {
        "launchd" => launchd(&program, &file),
        _ => systemd(&program, &file),
    })?;
    Ok(Exit::Done)
}

/// Within double quotes systemd expands specifiers and escapes.
fn systemd(program: &str, file: &str) -> String {
    let quoted = |path: &str| {
        let escaped = path.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
        format!("\"{escaped}\"")
    };
    format!(
        "# Put into ~/.config/systemd/user/leasehold.service, then: systemctl --user enable --now leasehold
[Unit]
Description=Scheduled jobs under leases
After=network-online.target

[Service]
Type=exec
ExecStart={} schedule --file {} run
ExecReload=/bin/kill -HUP $MAINPID
# Runs that go on are let end; those of a killed scheduler end by themselves.
KillMode=mixed
TimeoutStopSec=15min
Restart=always
RestartSec=5

[Install]
WantedBy=default.target
",
        quoted(program),
        quoted(file)
    )
}

fn launchd(program: &str, file: &str) -> String {
    let escaped = |path: &str| path.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>
<!-- Put into ~/Library/LaunchAgents/leasehold.schedule.plist, then: launchctl load -w that file -->
<!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">
<plist version=\"1.0\">
<dict>
  <key>Label</key><string>leasehold.schedule</string>
  <key>ProgramArguments</key>
  <array>
    <string>{}</string>
    <string>schedule</string>
    <string>--file</string>
    <string>{}</string>
    <string>run</string>
  </array>
  <key>RunAtLoad</key><true/>
  <key>KeepAlive</key><true/>
  <key>ExitTimeOut</key><integer>900</integer>
</dict>
</plist>
",
        escaped(program),
        escaped(file)
    )
}
