//! Servers as processes of their own, which are killed by SIGKILL and started again, and the store behind them.

use async_trait::async_trait;
use leasehold_core::store::{Capabilities, Change, Page, Range, Reading, Store, Survey, Swap, Verb, Watch};
use leasehold_core::{Key, Nonce, Result, Retention, Revision, Shelf};
use leasehold_server::access::{KeyRing, Keys, NewKey, Scope};
use leasehold_server::serve::{Exposure, Limits, Opener, Settings, Site};
use leasehold_stores::{Namespace, StoreUrl, open};
use leasehold_testbed::{Postgres, Server, Spec, etcd_is_healthy, free_port, wait_until};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;

const PORT: &str = "LEASEHOLD_FLEET_PORT";
const STORE: &str = "LEASEHOLD_FLEET_STORE";
const FLAW: &str = "LEASEHOLD_FLEET_FLAW";
/// The namespace of the clients.
pub const NAMESPACE: &str = "team";
/// How long a careless store waits before it writes whatever it was given.
const CARELESS: Duration = Duration::from_millis(30);

/// What is wrong with a server, in a run that must be found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    None,
    /// Its store writes leases whatever revision they have.
    Careless,
    /// Its store says of some items that they were added, and does not add them.
    Forgetful,
}

impl Flaw {
    const ALL: [Flaw; 3] = [Flaw::None, Flaw::Careless, Flaw::Forgetful];
}

/// A store's server.
pub enum Backend {
    Postgres(Postgres),
    Redis(Server),
    Etcd(Server),
}

impl Backend {
    pub fn url(&self) -> StoreUrl {
        let url = match self {
            Backend::Postgres(server) => Postgres::url(server.port()),
            Backend::Redis(server) => format!("redis://127.0.0.1:{}", server.port()),
            Backend::Etcd(server) => format!("etcd://127.0.0.1:{}", server.port()),
        };
        url.parse().unwrap()
    }

    pub fn kill(&mut self) {
        match self {
            Backend::Postgres(server) => server.kill(),
            Backend::Redis(server) | Backend::Etcd(server) => server.kill(),
        }
    }

    pub fn restart(&mut self) {
        match self {
            Backend::Postgres(server) => {
                server.restart();
                server.wait_until_ready();
            }
            Backend::Redis(server) => server.restart(),
            Backend::Etcd(server) => {
                server.restart();
                wait_until("etcd serves", || etcd_is_healthy(server.port()));
            }
        }
    }
}

/// A process that serves this store: this test program again, told to run only the test that calls [`serve_if_asked`].
pub fn server(store: &StoreUrl, flaw: Flaw) -> Server {
    let port = free_port();
    let spec = Spec::new(std::env::current_exe().unwrap(), port)
        .args(["a_server_of_the_fleet_serves", "--exact", "--nocapture"])
        .env(PORT, port.to_string())
        .env(STORE, store.portable())
        .env(FLAW, format!("{flaw:?}"));
    Server::start(spec, Server::temporary_folder())
}

/// Serves, and does not return, if this process was started for that.
pub fn serve_if_asked() {
    let (Ok(port), Ok(url)) = (std::env::var(PORT), std::env::var(STORE)) else { return };
    let flaw = std::env::var(FLAW).unwrap_or_default();
    let flaw = Flaw::ALL.into_iter().find(|known| format!("{known:?}") == flaw).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let url: StoreUrl = url.parse().unwrap();
        let limits = Limits { rate: 100_000, ..Limits::default() };
        let ring = KeyRing::new(keys(&url).await);
        let site = Site::new(Arc::new(Stores { url, flaw }), Retention::default(), ring, limits.clone());
        let listen = format!("127.0.0.1:{port}").parse().unwrap();
        let settings = Settings { listen, tls: None, exposure: Exposure::Secure, prefix: None, limits };
        let server = leasehold_server::serve::Server::bind(&settings, site).await.unwrap();
        let (_stop, stopped) = watch::channel(false);
        server.serve(stopped).await;
    });
}

async fn keys(store: &StoreUrl) -> Keys {
    Keys::new(open(&store.in_namespace(Namespace::server())).await.unwrap())
}

/// A key for everything that clients do.
pub async fn key(store: &StoreUrl) -> String {
    let scope = Scope::new(NAMESPACE.parse().unwrap(), vec!["*".parse().unwrap()], "read,hold,work".parse().unwrap());
    let (label, by) = ("fleet".parse().unwrap(), "fleet".parse().unwrap());
    let wanted = NewKey { label, scope: scope.unwrap(), lasts: None, not_after: None, by };
    keys(store).await.create(wanted).await.unwrap().0.reveal().to_owned()
}

#[derive(Debug)]
struct Stores {
    url: StoreUrl,
    flaw: Flaw,
}

#[async_trait]
impl Opener for Stores {
    async fn open(&self, namespace: &Namespace) -> Result<Arc<dyn Store>> {
        let inner = open(&self.url.in_namespace(namespace.clone())).await?;
        Ok(match self.flaw {
            Flaw::None => inner,
            flaw => Arc::new(Flawed { inner, flaw, additions: AtomicU64::new(0) }),
        })
    }
}

/// A store that does not do what it says.
#[derive(Debug)]
struct Flawed {
    inner: Arc<dyn Store>,
    flaw: Flaw,
    additions: AtomicU64,
}

#[async_trait]
impl Store for Flawed {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        self.inner.read(key).await
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        match self.flaw {
            Flaw::Careless if change.key.shelf == Shelf::Lease => {
                tokio::time::sleep(CARELESS).await;
                let found = self.inner.read(change.key).await?.value.map(|value| value.revision);
                self.inner.write(&Change { expected: found.as_ref(), ..*change }).await
            }
            Flaw::Forgetful if matches!(change.verb, Verb::Add(_)) => {
                if self.additions.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
                    let now = self.inner.read(change.key).await?.now;
                    return Ok(Swap::Done { revision: Revision(Nonce::random().to_string()), now });
                }
                self.inner.write(change).await
            }
            _ => self.inner.write(change).await,
        }
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        self.inner.list(shelf, range).await
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        self.inner.watch(key).await
    }

    async fn survey(&self) -> Result<Survey> {
        self.inner.survey().await
    }
}
