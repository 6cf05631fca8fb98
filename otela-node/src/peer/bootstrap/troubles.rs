//! What is in the way to bootstraps and lists now, for whoever looks at a peer that is not where it should be.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Why a bootstrap is not reached, or a list not read, by what was configured. Cloning shares it.
#[derive(Debug, Clone, Default)]
pub(in crate::peer) struct Troubles(Arc<Mutex<BTreeMap<String, String>>>);

impl Troubles {
    /// This is in the way to `bootstrap`.
    pub(in crate::peer) fn begin(&self, bootstrap: String, why: String) {
        self.held().insert(bootstrap, why);
    }

    /// It was reached, or read.
    pub(in crate::peer) fn are_over(&self, bootstrap: &str) {
        self.held().remove(bootstrap);
    }

    /// All there are now.
    pub(in crate::peer) fn now(&self) -> BTreeMap<String, String> {
        self.held().clone()
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
