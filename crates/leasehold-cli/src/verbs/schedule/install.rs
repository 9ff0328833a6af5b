//! `schedule install`: a service file for `leasehold schedule`, written or printed. Nothing is started.
//!
//! Promise: the service uses the store that this command was given, and the settings that are in this shell's environment; no
//! secret is in it, since others may read such files, and each variable of ours that is left out is named; a file that differs is
//! not overwritten unasked. Non-promise: variables that are not ours, such as those of a database's driver, are not looked at.

use super::daemon::LABELS;
use crate::args::Install;
use crate::config::{self, Settings, Source};
use crate::exit::Exit;
use crate::run_output::OUTPUT;
use crate::supervise::CGROUP;
use crate::{output, whole_file};
use leasehold_core::{Error, Kind, Result};
use std::path::Path;

/// How the names of our variables begin.
const OURS: &str = "LEASEHOLD_";
/// Settings of a scheduler that have no name in the settings.
const PLAIN: [&str; 2] = [LABELS, CGROUP];
const STORE: &str = "LEASEHOLD_STORE";
const KEY: &str = "LEASEHOLD_KEY";
/// Secrets for which a service can be told the file that has them.
const IN_FILES: [&str; 2] = [STORE, KEY];
const DURABLE_TOKEN: &str = "LEASEHOLD_DO_TOKEN";

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
    let variables = variables(settings)?;
    let has = |name: &str| variables.iter().any(|(known, _)| known == name);
    if !has(&in_file(STORE))
        && let Some(store) = store(settings, file)?
    {
        words.extend(["--store".into(), store]);
    }
    words.push("run".into());
    let service = match args.kind.as_deref().unwrap_or(usual) {
        "launchd" => launchd(&words, &variables),
        _ => systemd(&words, &variables),
    };
    if args.print {
        output::print(&service.text)?;
    } else {
        write(&service, args.force)?;
    }
    left_out(&variables).iter().for_each(|line| tracing::warn!("{line}"));
    Ok(Exit::Done)
}

/// A variable that is set.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The variable that names the file of a secret.
fn in_file(secret: &str) -> String {
    format!("{secret}_FILE")
}

/// What a service takes from this shell's environment: its settings, and the paths of files with secrets.
fn variables(settings: &Settings) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    // A bucket's address may have a password in it, which the table of settings hides.
    let hides =
        |name: &str| name == OUTPUT && settings.output.value.as_ref().is_some_and(|o| o.portable() != o.to_string());
    for (_, value, source) in settings.rows() {
        if let (Some(value), Source::Environment(name)) = (value, source)
            && *name != STORE
            && !hides(name)
        {
            found.push(((*name).to_owned(), value));
        }
    }
    found.extend(PLAIN.into_iter().filter_map(|name| Some((name.to_owned(), variable(name)?))));
    for secret in IN_FILES {
        // A store that a flag names needs none.
        let is_used =
            secret != STORE || matches!(settings.store.source, Source::Environment(_)) && variable(STORE).is_none();
        if let Some(path) = variable(&in_file(secret)).filter(|_| is_used) {
            let path = std::path::absolute(&path).map_or(path, |path| path.display().to_string());
            found.push((in_file(secret), path));
        }
    }
    match found.iter().find(|(_, value)| value.chars().any(char::is_control)) {
        Some((name, _)) => {
            Err(Error::new(Kind::Invalid, format!("{name} is not one line, as a service file needs it")))
        }
        None => Ok(found),
    }
}

/// A line for each variable of ours that is set here and not in the service.
fn left_out(variables: &[(String, String)]) -> Vec<String> {
    let is_there = |name: &str| variables.iter().any(|(known, _)| known == name);
    let set =
        std::env::vars_os().filter(|(_, value)| !value.is_empty()).filter_map(|(name, _)| name.into_string().ok());
    // The store is named in the service's command, or in a file that it reads.
    let is_meant = |name: &String| name.starts_with(OURS) && !name.starts_with(STORE) && !is_there(name);
    let mut names: Vec<String> = set.filter(is_meant).collect();
    names.sort();
    let is_secret = |name: &str| name == DURABLE_TOKEN || config::SECRETS.contains(&name);
    let advice = |name: &str| match name {
        KEY => format!(
            "it is a secret, and others may read service files. Write the key to a file that only its user may read, \
             set {} to the path in place of {KEY}, and run this again",
            in_file(KEY)
        ),
        OUTPUT => "it has a secret in it, and others may read service files. Put `output` into leasehold.toml, \
                   closed to others"
            .to_owned(),
        name if is_secret(name) => "it may be a secret, and others may read service files. Put it into a file that \
                                    only its user may read (systemd: `EnvironmentFile=`)"
            .to_owned(),
        _ => "set it in the file or in the service".to_owned(),
    };
    names.iter().map(|name| format!("the service will not have this shell's {name}: {}", advice(name))).collect()
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
            let message = format!(
                "`{shown}` differs from what would be written; compare with --print, or overwrite it with --force"
            );
            return Err(Error::new(Kind::Invalid, message));
        }
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(cannot(e)),
        _ => {}
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(cannot)?;
    }
    whole_file::replace(&path, &service.text).map_err(cannot)?;
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
fn systemd(words: &[String], variables: &[(String, String)]) -> Service {
    let escaped = |word: &str| word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%");
    // Those that need no quotes have none.
    let is_plain = |word: &str| word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
    let quoted = |word: &String| {
        if is_plain(word) {
            return word.clone();
        }
        format!("\"{}\"", escaped(word))
    };
    // A `$` is expanded in the arguments of commands only: in the path of the program `$$` would be two.
    let (program, arguments) =
        words.split_first().map_or((String::new(), words), |(first, rest)| (quoted(first), rest));
    let command: Vec<String> =
        std::iter::once(program).chain(arguments.iter().map(|word| quoted(word).replace('$', "$$"))).collect();
    let environment: String =
        variables.iter().map(|(name, value)| format!("Environment=\"{name}={}\"\n", escaped(value))).collect();
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
{environment}ExecStart={}
ExecReload=/bin/kill -HUP $MAINPID
# When it is stopped or restarted, runs that are under way may finish. Those of a scheduler that died are killed with it.
KillMode=mixed
TimeoutStopSec=15min
Restart=always
RestartSec=5

[Install]
WantedBy=default.target
",
        command.join(" ")
    );
    let next = "start it with: systemctl --user daemon-reload && systemctl --user enable --now leasehold (and, to keep it \
                running without a login: loginctl enable-linger)";
    Service { text, path: ".config/systemd/user/leasehold.service", next }
}

fn launchd(words: &[String], variables: &[(String, String)]) -> Service {
    let escaped = |word: &str| word.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let pairs: String = variables
        .iter()
        .map(|(name, value)| format!("    <key>{name}</key><string>{}</string>\n", escaped(value)))
        .collect();
    let environment = match &*pairs {
        "" => String::new(),
        pairs => format!("  <key>EnvironmentVariables</key>\n  <dict>\n{pairs}  </dict>\n"),
    };
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
{environment}  <key>RunAtLoad</key><true/>
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dollar_sign_is_doubled_in_arguments_and_not_in_the_path_of_the_program() {
        let words = ["/opt/a$b/leasehold", "schedule", "--file", "/srv/c$d 100%"].map(String::from);
        let text = systemd(&words, &[]).text;
        let line = "ExecStart=\"/opt/a$b/leasehold\" schedule --file \"/srv/c$$d 100%%\"";
        assert!(text.lines().any(|found| found == line), "{text}");
    }
}
