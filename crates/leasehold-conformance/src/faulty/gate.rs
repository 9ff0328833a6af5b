//! A point at which a call waits until a test lets it continue.

use std::sync::Arc;
use tokio::sync::Semaphore;

/// A gate, shut until it is opened, and then open for good. Clones are the same gate.
#[derive(Debug, Clone)]
pub struct Gate {
    arrived: Arc<Semaphore>,
    open: Arc<Semaphore>,
}

impl Default for Gate {
    fn default() -> Self {
        Gate { arrived: Arc::new(Semaphore::new(0)), open: Arc::new(Semaphore::new(0)) }
    }
}

impl PartialEq for Gate {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.open, &other.open)
    }
}

impl Eq for Gate {}

impl Gate {
    /// Lets everybody through, from now on.
    pub fn open(&self) {
        // It never has permits: closing it releases all waiters.
        self.open.close();
    }

    /// Waits until a call has arrived at the gate. Each arrival counts once.
    pub async fn reached(&self) {
        if let Ok(permit) = self.arrived.acquire().await {
            permit.forget();
        }
    }

    /// Arrives, and waits until the gate is open.
    pub async fn pass(&self) {
        self.arrived.add_permits(1);
        let _ = self.open.acquire().await;
    }
}
