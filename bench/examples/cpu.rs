//! scratch
#![allow(missing_docs, clippy::all)]
use futures_util::future::join_all;
use leasehold::*;
use std::sync::Arc;
fn ticks(pid: u32) -> f64 {
    let s = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let f: Vec<&str> = s.rsplit(')').next().unwrap().split_whitespace().collect();
    (f[11].parse::<f64>().unwrap() + f[12].parse::<f64>().unwrap()) * 10_000.0
}
fn all(name: &str) -> f64 {
    let mut t = 0.0;
    for e in std::fs::read_dir("/proc").unwrap().flatten() {
        if let Ok(pid) = e.file_name().to_string_lossy().parse::<u32>() {
            if std::fs::read_to_string(format!("/proc/{pid}/comm")).map(|c| c.trim() == name).unwrap_or(false) {
                t += ticks(pid);
            }
        }
    }
    t
}
fn main() {
    let which = std::env::args().nth(1).unwrap();
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let n: usize = 400;
    let me = std::process::id();
    let (url, server): (String, &str);
    let r;
    let p;
    match which.as_str() {
        "memory" => {
            url = String::new();
            server = "none";
        }
        "redis" => {
            r = leasehold_testbed::redis();
            url = format!("redis://127.0.0.1:{}", r.port());
            server = "redis-server";
        }
        _ => {
            p = leasehold_testbed::Postgres::with(&["max_connections=400"]);
            url = leasehold_testbed::Postgres::url(p.port());
            server = "postgres";
        }
    }
    rt.block_on(async {
        let mut crew = Vec::new();
        for at in 0..64 {
            let store: Arc<dyn Store> = if url.is_empty() {
                Arc::new(MemoryStore::default())
            } else {
                leasehold_stores::open(&url.parse().unwrap()).await.unwrap()
            };
            crew.push((Coordinator::new(store), format!("own-{at}").parse::<LeaseName>().unwrap()));
        }
        let go = |n: usize, what: &'static str| {
            let crew = &crew;
            async move {
                let (a, b) = (ticks(me), all(server));
                join_all(crew.iter().map(|(c, l)| async move {
                    let mut grant = None;
                    for _ in 0..n {
                        if grant.is_none() {
                            match c.acquire(l, &Ask::new(HolderId::new(None), "90s".parse().unwrap())).await.unwrap() {
                                Acquired::Granted(g) => grant = Some(*g),
                                _ => panic!(),
                            }
                        }
                        if what == "renew" {
                            c.renew(grant.as_mut().unwrap(), None).await.unwrap();
                        } else {
                            c.release(&grant.take().unwrap(), Outcome::Succeeded).await.unwrap();
                        }
                    }
                    if let Some(g) = grant {
                        c.release(&g, Outcome::Succeeded).await.unwrap();
                    }
                }))
                .await;
                let ops = (64 * n) as f64;
                println!(
                    "{what}: client {:.1} us/op, server {:.1} us/op",
                    (ticks(me) - a) / ops,
                    (all(server) - b) / ops
                );
            }
        };
        if std::env::args().nth(2).as_deref() != Some("peer") && std::env::args().nth(2).as_deref() != Some("crowd") {
            go(40, "tenure").await;
            if std::env::args().nth(2).as_deref() != Some("renew") {
                go(n, "tenure").await;
            }
            go(n, "renew").await;
            go(n, "renew").await;
            go(n, "renew").await;
        }
    });
    if std::env::args().nth(2).as_deref() == Some("crowd") {
        for count in [2usize, 8, 64] {
            rt.block_on(async {
                let mut crew = Vec::new();
                for _ in 0..count {
                    crew.push(Coordinator::new(leasehold_stores::open(&url.parse().unwrap()).await.unwrap()));
                }
                join_all(crew.iter().map(|c| async move {
                    let ask = Ask::new(HolderId::new(None), "90s".parse().unwrap());
                    let name: LeaseName = format!("crowd-{count}").parse().unwrap();
                    match c.acquire_within(&[name], &ask, std::time::Duration::from_secs(60)).await.unwrap() {
                        Acquired::Granted(g) => {
                            c.release(&g, Outcome::Succeeded).await.unwrap();
                        }
                        _ => panic!(),
                    }
                }))
                .await;
                let (a, b) = (ticks(me), all(server));
                let end = std::time::Instant::now() + std::time::Duration::from_secs(4);
                let n = join_all(crew.iter().map(|c| async move {
                    let mut n = 0;
                    while std::time::Instant::now() < end {
                        let ask = Ask::new(HolderId::new(None), "90s".parse().unwrap());
                        let name: LeaseName = format!("crowd-{count}").parse().unwrap();
                        match c.acquire_within(&[name], &ask, std::time::Duration::from_secs(60)).await.unwrap() {
                            Acquired::Granted(g) => {
                                c.release(&g, Outcome::Succeeded).await.unwrap();
                                n += 1;
                            }
                            _ => panic!(),
                        }
                    }
                    n
                }))
                .await;
                let sum: usize = n.iter().sum();
                println!(
                    "{count}: {} /s, client {:.0} us, server {:.0} us per handover; least {} most {}",
                    sum / 4,
                    (ticks(me) - a) / sum as f64,
                    (all(server) - b) / sum as f64,
                    n.iter().min().unwrap(),
                    n.iter().max().unwrap()
                );
            });
        }
    }
    // peer
    if which == "redis" && std::env::args().nth(2).as_deref() != Some("renew") {
        for _ in 0..3 {
            rt.block_on(async {
            let client = redis::Client::open(url.clone()).unwrap();
            let script = redis::Script::new("if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end");
            let mut crew = Vec::new();
            for at in 0..64 { let mut c = client.get_multiplexed_async_connection().await.unwrap();
                let k = format!("peer-{at}"); let _: () = redis::cmd("SET").arg(&k).arg("nonce").query_async(&mut c).await.unwrap(); crew.push((c, k)); }
            let (a, b) = (ticks(me), all(server));
            join_all(crew.iter_mut().map(|(c, k)| { let script = &script; async move { for _ in 0..n {
                let d: u32 = script.key(&*k).arg("nonce").arg(90000).invoke_async(c).await.unwrap(); assert_eq!(d, 1); } } })).await;
            let ops = (64 * n) as f64;
            println!("peer renew: client {:.1} us/op, server {:.1} us/op", (ticks(me) - a) / ops, (all(server) - b) / ops);
        });
        }
    }
}
