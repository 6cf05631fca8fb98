//! An engine that serves, asked again: does it still make tokens, and which models has it now?

use super::{
    kind::{Engine, Kind},
    load::EngineLoad,
    ready::Ready,
    serving::{ModelInfo, Place},
};
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::timeout;

/// The engine is on this host: it accepts at once, or its queue of connections is full.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// The list is made by the part of an engine that is busy the least.
const LIST_LIMIT: Duration = Duration::from_secs(10);

/// Where a serving engine is asked.
#[derive(Debug, Clone)]
pub struct Watched {
    engine: Engine,
    endpoint: SocketAddr,
    api_key: Option<String>,
    /// One that it lists.
    model: Arc<Mutex<String>>,
}

impl Watched {
    /// An engine of this kind that has become ready.
    #[must_use]
    pub fn new(ready: &Ready, kind: &Kind) -> Self {
        let model = ready.models.first().map(|model| model.id.clone()).unwrap_or_default();
        let (engine, endpoint, api_key) = (kind.engine, ready.endpoint, kind.api_key.clone());
        Self { engine, endpoint, api_key, model: Arc::new(Mutex::new(model)) }
    }

    fn place(&self) -> Place<'_> {
        Place { address: self.endpoint, api_key: self.api_key.as_deref(), connect_limit: CONNECT_LIMIT }
    }

    /// Makes one token.
    ///
    /// # Errors
    /// Why there was none within `limit`, in words.
    pub async fn generates(&self, limit: Duration) -> Result<(), String> {
        let asked = timeout(limit, async {
            let model = self.model();
            let Err(problem) = self.place().generate(&model, limit).await else { return Ok(()) };
            // It may have others by now.
            match self.models().await {
                Ok(_) if self.model() != model => self.place().generate(&self.model(), limit).await.map(drop),
                _ => Err(problem),
            }
        });
        let asked = asked.await.map_err(|_| format!("no token within {}", humantime::format_duration(limit)))?;
        asked.map_err(|problem| problem.text)
    }

    fn model(&self) -> String {
        self.model.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What it says of its load, and all of its metrics in Prometheus' text format; `None` if engines of its kind tell none.
    ///
    /// # Errors
    /// Why it does not tell, in words.
    pub async fn load(&self) -> Option<Result<(EngineLoad, String), String>> {
        let names = self.engine.load_names()?;
        let asked = timeout(LIST_LIMIT, self.place().text(names.path, LIST_LIMIT)).await;
        let asked = asked.map_err(|_| format!("no metrics within {}", humantime::format_duration(LIST_LIMIT)));
        let page = asked.and_then(|asked| asked.map_err(|problem| problem.text));
        Some(page.map(|page| (EngineLoad::read(&page, names), page)))
    }

    /// The models that it lists now; at least one.
    ///
    /// # Errors
    /// Why it lists none, in words.
    pub async fn models(&self) -> Result<Vec<ModelInfo>, String> {
        let asked = timeout(LIST_LIMIT, self.place().models(Some(LIST_LIMIT))).await;
        let asked =
            asked.map_err(|_| format!("no list of models within {}", humantime::format_duration(LIST_LIMIT)))?;
        let models = asked.map_err(|problem| problem.text)?;
        let mut model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        if !models.iter().any(|listed| listed.id == *model)
            && let Some(first) = models.first()
        {
            model.clone_from(&first.id);
        }
        Ok(models)
    }
}
