//! A statement that an entry carries in its payload.

use std::sync::{Arc, OnceLock};

/// What became of reading such a statement, whose signature is checked once for all clones of the entry.
#[derive(Debug)]
pub(super) struct Carried<T, E>(Option<Arc<OnceLock<Result<T, E>>>>);

impl<T, E> Carried<T, E> {
    /// The statement with these bytes, of which none are none.
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self((!bytes.is_empty()).then(Arc::default))
    }

    /// The statement; `read` reads it if nothing has done so before.
    pub(super) fn get(&self, read: impl FnOnce() -> Result<T, E>) -> Option<&Result<T, E>> {
        Some(self.0.as_ref()?.get_or_init(read))
    }
}

impl<T, E> Clone for Carried<T, E> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}
