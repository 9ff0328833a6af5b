//! A small server of our own on a free loopback port, in a thread of its own: a test that blocks must not stop it.

use std::thread::JoinHandle;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// It serves until it is dropped.
#[derive(Debug)]
pub(crate) struct Loopback {
    port: u16,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Loopback {
    pub(crate) fn start<F: Future<Output = ()>>(serve: impl FnOnce(TcpListener) -> F + Send + 'static) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (stop, mut stopped) = watch::channel(false);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = serve(TcpListener::from_std(listener).unwrap()) => {}
                    _ = stopped.changed() => {}
                }
            });
        });
        Loopback { port, stop, thread: Some(thread) }
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
