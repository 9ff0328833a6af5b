//! `proxy`: an HTTP service behind a fence.

use super::rely_on_the_store;
use crate::args::Proxy as Args;
use crate::config::{Settings, blame_flag, duration_of};
use crate::context::{Context, Target, existing_spool};
use crate::exit::Exit;
use crate::supervise::Signals;
use crate::{listen, output};
use leasehold_core::guard::{Policy, Strength};
use leasehold_core::observe::Observed;
use leasehold_core::{Error, Kind, LeaseName, Result, Ttl};
use leasehold_server::proxy::{Limits, Proxy, Replay, Settings as ProxySettings, Upstream};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

pub async fn proxy(context: &Context, args: &Args) -> Result<Exit> {
    let plan = plan(args, context.settings()?)?;
    let spool = |text: &String| Target::spool(text).map_err(|e| blame_flag(e, "--spool"));
    let spools = args.spool.iter().map(spool).collect::<Result<Vec<_>>>()?;
    let listen = listen::address("--listen", &args.listen, 8080)?;
    let coordinator = context.coordinator().await?;
    let listener = TcpListener::bind(listen)
        .await
        .map_err(|e| Error::new(Kind::Unavailable, format!("cannot listen on {listen}")).with_source(e))?;
    let listen =
        listener.local_addr().map_err(|e| Error::unavailable("cannot tell the address that is listened on", e))?;
    let mut signals = Signals::listen_to_ending()?;
    let (upstream, resource, policy) = (plan.upstream.to_string(), plan.resource.clone(), plan.policy);
    if plan.state.is_none() {
        rely_on_the_store(coordinator, &format!("http:{resource}"));
    }
    let mut known = context.tokens(coordinator)?;
    for path in &spools {
        known = known.with_spool(existing_spool(path)?);
    }
    let say = Arc::new(|text: &str| output::say(text));
    let proxy = Proxy::new(plan, coordinator.clone(), Arc::new(known), Observed::NOBODY, say)?;
    proxy.check().await?;
    context.print(
        || {
            let strength = Strength::Atomic.to_string();
            json!({ "listen": listen.to_string(), "upstream": upstream, "resource": resource.as_str(), "strength": strength })
        },
        || format!("listening on http://{listen}\n"),
    )?;
    let once = if policy == Policy::OncePerEpoch { ", one request per epoch" } else { "" };
    output::say(&format!(
        "proxy to {upstream}: resource=`http:{resource}` strength={} for what passes through it{once}",
        Strength::Atomic
    ));
    let (stop, stopped) = watch::channel(false);
    let serving = proxy.serve(listener, stopped);
    tokio::pin!(serving);
    tokio::select! {
        done = &mut serving => return done.map(|()| Exit::Done),
        _ = signals.next_ending() => {}
    }
    output::say("ending: no new connections; what is in flight is waited for");
    let _ = stop.send(true);
    tokio::select! {
        done = &mut serving => done.map(|()| Exit::Done),
        // Asked twice: at once. The lease expires by itself.
        number = signals.next_ending() => Ok(Exit::by_signal(number)),
    }
}

fn plan(args: &Args, settings: &Settings) -> Result<ProxySettings> {
    let duration = |flag: &str, text: &str| -> Result<Duration> {
        let found = duration_of(flag, Some(text))?.unwrap_or_default();
        if found.is_zero() {
            return Err(blame_flag(Error::invalid("duration", text, "use more than nothing, such as 500ms"), flag));
        }
        Ok(found)
    };
    let resource = LeaseName::new(&args.resource).map_err(|e| blame_flag(e, "--resource"))?;
    let upstream: Upstream = args.upstream.parse().map_err(|e| blame_flag(e, "--upstream"))?;
    let lease = args.lease.as_deref().map(LeaseName::new).transpose().map_err(|e| blame_flag(e, "--lease"))?;
    let ttl: Ttl = args.ttl.parse().map_err(|e| blame_flag(e, "--ttl"))?;
    let age = duration("--replay-age", &args.replay_age)?;
    Ok(ProxySettings {
        resource,
        upstream,
        lease,
        policy: if args.once_per_epoch { Policy::OncePerEpoch } else { Policy::Reentrant },
        allow_safe: args.allow_safe,
        replay: (args.replay > 0).then_some(Replay { entries: args.replay as usize, age }),
        limits: Limits {
            max_body: args.max_body,
            max_head: args.max_head as usize,
            max_requests: args.max_requests as usize,
            max_connections: args.max_connections as usize,
            client_timeout: duration("--client-timeout", &args.client_timeout)?,
            upstream_timeout: duration("--upstream-timeout", &args.upstream_timeout)?,
            drain: duration("--drain", &args.drain)?,
        },
        ttl,
        label: settings.label.value.clone(),
        state: settings.state_folder(args.no_state)?,
    })
}
