//! Whether an order of a scheduler is one to follow.

use super::LaunchTemplate;
use crate::{tasks::Tasks, telemetry::Metrics};
use http::StatusCode;
use otela_proto::{
    PeerId,
    assignment::{Directive, Invalid, Ticket, Work},
    id::{MeshName, Session},
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use std::fmt;
use tokio::sync::watch;

/// Who may tell this node what to serve, and how it is started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Assignable {
    /// Schedulers, by their peer ids. Without any, nobody may.
    pub schedulers: Vec<PeerId>,
    /// Ways to start engines.
    pub templates: Vec<LaunchTemplate>,
}

/// Why an order is not followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    /// The node runs its provider's own engine.
    #[error("this node serves what its provider has started and takes no orders")]
    NotOffered,
    /// Nobody could follow it.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The provider does not name the scheduler.
    #[error("the provider of this node does not name the scheduler {0}: it is one more --scheduler there")]
    UnknownScheduler(PeerId),
    /// It was meant for somebody else, or for an earlier run.
    #[error("the directive is for another session; this one is {0:?}")]
    OtherSession(Session),
    /// A higher order was taken.
    #[error("an order of plan {}, generation {}, has been taken: this one is older", .0.plan, .0.generation)]
    Stale(Ticket),
    /// The same plan said something else.
    #[error("plan {} said something else to this node before", .0.plan)]
    Conflict(Ticket),
    /// There is no such template.
    #[error("this node has no launch template {0:?}")]
    UnknownTemplate(String),
    /// The template may not start the model.
    #[error("the launch template {template:?} does not start {model:?}")]
    ModelNotAllowed {
        /// The template.
        template: String,
        /// The model.
        model: String,
    },
    /// The node has fewer accelerators.
    #[error("{asked} accelerators are asked for, and this node has {has}")]
    TooFewAccelerators {
        /// How many it takes.
        asked: u32,
        /// How many there are.
        has: u32,
    },
    /// It is on its way out.
    #[error("this node is stopping")]
    Stopping,
}

impl Refused {
    /// The cause as a word of the API and a metric label.
    pub(crate) const fn reason(&self) -> &'static str {
        match self {
            Self::NotOffered => "not_offered",
            Self::Invalid(invalid) => invalid.reason(),
            Self::UnknownScheduler(_) => "unknown_scheduler",
            Self::OtherSession(_) => "other_session",
            Self::Stale(_) => "stale_plan",
            Self::Conflict(_) => "conflicting_plan",
            Self::UnknownTemplate(_) => "unknown_template",
            Self::ModelNotAllowed { .. } => "model_not_allowed",
            Self::TooFewAccelerators { .. } => "too_few_accelerators",
            Self::Stopping => "stopping",
        }
    }

    pub(crate) const fn status(&self) -> StatusCode {
        match self {
            Self::NotOffered | Self::UnknownScheduler(_) => StatusCode::FORBIDDEN,
            Self::Invalid(_) => StatusCode::BAD_REQUEST,
            Self::OtherSession(_) | Self::Stale(_) | Self::Conflict(_) => StatusCode::CONFLICT,
            Self::UnknownTemplate(_) | Self::ModelNotAllowed { .. } | Self::TooFewAccelerators { .. } => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            Self::Stopping => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

/// The orders of one node: checked here, followed by [`super`].
pub(crate) struct Orders {
    mesh: MeshName,
    /// The node's session now.
    me: Box<dyn Fn() -> Session + Send + Sync>,
    assignable: Assignable,
    tasks: Tasks,
    /// Accelerators that an engine may have; 0 if the node has none, and then nobody counts.
    accelerators: watch::Sender<u32>,
    /// The order that counts now.
    order: watch::Sender<Option<Directive>>,
    taken: Counter,
    refused: Family<Reason, Counter>,
}

impl Orders {
    pub(crate) fn new(
        mesh: MeshName,
        me: impl Fn() -> Session + Send + Sync + 'static,
        assignable: Assignable,
        tasks: Tasks,
        metrics: &Metrics,
    ) -> Self {
        let (taken, refused) = (Counter::default(), Family::<Reason, Counter>::default());
        metrics.register(|r| {
            r.register("otela_agent_directives", "Orders of schedulers that were taken", taken.clone());
            r.register("otela_agent_directives_refused", "Orders that were not, by reason", refused.clone());
        });
        Self {
            mesh,
            me: Box::new(me),
            assignable,
            tasks,
            accelerators: watch::channel(0).0,
            order: watch::channel(None).0,
            taken,
            refused,
        }
    }

    /// Whether anybody may give any.
    pub(crate) fn are_taken(&self) -> bool {
        !self.assignable.schedulers.is_empty()
    }

    pub(super) fn assignable(&self) -> &Assignable {
        &self.assignable
    }

    pub(crate) fn has_accelerators(&self, count: u32) {
        self.accelerators.send_replace(count);
    }

    /// Follows what counts.
    pub(super) fn follow(&self) -> watch::Receiver<Option<Directive>> {
        self.order.subscribe()
    }

    pub(super) fn template(&self, name: &str) -> Option<&LaunchTemplate> {
        self.assignable.templates.iter().find(|template| template.name == name)
    }

    /// Takes an encoded order, or says why not. One that was taken before is taken again, and changes nothing.
    pub(crate) fn take(&self, bytes: &[u8]) -> Result<(), Refused> {
        let taken = self.check(bytes).and_then(|directive| self.put(directive));
        match &taken {
            Ok(()) => _ = self.taken.inc(),
            Err(refused) => {
                tracing::info!(reason = refused.reason(), "an order was refused: {refused}");
                self.refused.get_or_create(&Reason { reason: refused.reason() }).inc();
            }
        }
        taken
    }

    fn check(&self, bytes: &[u8]) -> Result<Directive, Refused> {
        if !self.are_taken() {
            return Err(Refused::NotOffered);
        }
        if self.tasks.is_draining() {
            return Err(Refused::Stopping);
        }
        let directive = Directive::open(bytes, &self.mesh)?;
        let scheduler = directive.ticket.scheduler;
        if !self.assignable.schedulers.contains(&scheduler) {
            return Err(Refused::UnknownScheduler(scheduler));
        }
        let me = (self.me)();
        if directive.to != me {
            return Err(Refused::OtherSession(me));
        }
        directive.work.as_ref().map_or(Ok(()), |work| self.can(work))?;
        Ok(directive)
    }

    fn can(&self, work: &Work) -> Result<(), Refused> {
        let Some(template) = self.template(&work.template) else {
            return Err(Refused::UnknownTemplate(work.template.clone()));
        };
        if !template.offered().allows(&work.model) {
            return Err(Refused::ModelNotAllowed { template: work.template.clone(), model: work.model.clone() });
        }
        let (asked, has) = (work.tensor_parallel.saturating_mul(work.data_parallel), *self.accelerators.borrow());
        if asked > has.max(1) { Err(Refused::TooFewAccelerators { asked, has }) } else { Ok(()) }
    }

    fn put(&self, directive: Directive) -> Result<(), Refused> {
        let mut put = Ok(());
        // Compared and put in one step, for orders may come at once.
        self.order.send_if_modified(|now| {
            match now {
                Some(now) if directive.ticket < now.ticket => put = Err(Refused::Stale(now.ticket)),
                Some(now) if directive.ticket == now.ticket && directive.work != now.work => {
                    put = Err(Refused::Conflict(now.ticket));
                }
                Some(now) if directive == *now => {}
                _ => {
                    *now = Some(directive);
                    return true;
                }
            }
            false
        });
        put
    }
}

impl fmt::Debug for Orders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Orders")
            .field("assignable", &self.assignable)
            .field("order", &self.order)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use otela_proto::{Keypair, id::Epoch};
    use prost::Message;

    fn key(n: u8) -> Keypair {
        Keypair::ed25519_from_bytes([n; 32]).unwrap()
    }

    fn peer(n: u8) -> PeerId {
        key(n).public().to_peer_id()
    }

    fn me() -> Session {
        Session { peer: peer(1), epoch: Epoch(5) }
    }

    fn lab() -> MeshName {
        "lab".parse().unwrap()
    }

    fn orders() -> Orders {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "[a]\ncommand = [\"x\", \"{model}\"]\nmodels = [\"m*\"]").unwrap();
        let templates = LaunchTemplate::load(file.path()).unwrap();
        let assignable = Assignable { schedulers: vec![peer(2), peer(3)], templates };
        let orders = Orders::new(lab(), me, assignable, Tasks::new(), &Metrics::new());
        orders.has_accelerators(4);
        orders
    }

    fn work(template: &str, model: &str, tensor_parallel: u32) -> Option<Work> {
        Some(Work { template: template.into(), model: model.into(), tensor_parallel, data_parallel: 1 })
    }

    fn bytes(to: Session, scheduler: u8, (generation, plan): (u64, u64), work: Option<Work>) -> Vec<u8> {
        let ticket = Ticket { generation, scheduler: peer(scheduler), plan };
        Directive { to, ticket, work }.sign(&key(scheduler), &lab()).unwrap().encode_to_vec()
    }

    #[test]
    fn only_trusted_schedulers_are_followed_and_only_with_what_the_provider_offers() {
        let orders = orders();
        let refused = |bytes: &[u8]| orders.take(bytes).unwrap_err().reason();
        assert_eq!(refused(&bytes(me(), 4, (1, 1), work("a", "m", 1))), "unknown_scheduler");
        let before = Session { epoch: Epoch(4), ..me() };
        assert_eq!(refused(&bytes(before, 2, (1, 1), work("a", "m", 1))), "other_session");
        assert_eq!(refused(&bytes(Session { peer: peer(9), ..me() }, 2, (1, 1), None)), "other_session");
        assert_eq!(refused(&bytes(me(), 2, (1, 1), work("b", "m", 1))), "unknown_template");
        assert_eq!(refused(&bytes(me(), 2, (1, 1), work("a", "n", 1))), "model_not_allowed");
        assert_eq!(refused(&bytes(me(), 2, (1, 1), work("a", "m", 8))), "too_few_accelerators");
        assert_eq!(refused(b"nonsense"), "malformed");
        assert_eq!(orders.take(&bytes(me(), 2, (1, 1), work("a", "m2", 4))), Ok(()));
        orders.tasks.drain();
        assert_eq!(refused(&bytes(me(), 2, (1, 2), None)), "stopping");
        let nobody = Orders::new(lab(), me, Assignable::default(), Tasks::new(), &Metrics::new());
        assert_eq!(nobody.take(&bytes(me(), 2, (1, 1), None)), Err(Refused::NotOffered));
    }

    #[test]
    fn an_older_plan_never_comes_back_and_the_same_one_changes_nothing() {
        let orders = orders();
        let mut seen = orders.follow();
        let take = |scheduler, ticket, work| orders.take(&bytes(me(), scheduler, ticket, work));
        assert_eq!(take(2, (2, 5), work("a", "m1", 1)), Ok(()));
        assert!(seen.has_changed().unwrap());
        seen.borrow_and_update();
        assert_eq!(take(2, (2, 5), work("a", "m1", 1)), Ok(()), "sent twice");
        assert!(!seen.has_changed().unwrap());
        let reason = |taken: Result<(), Refused>| taken.unwrap_err().reason();
        assert_eq!(reason(take(2, (2, 5), None)), "conflicting_plan");
        assert_eq!(reason(take(2, (2, 4), work("a", "m2", 1))), "stale_plan");
        assert_eq!(reason(take(3, (1, 99), work("a", "m2", 1))), "stale_plan");
        // Of two schedulers with one generation the same one counts everywhere.
        let (low, high) = if peer(2) < peer(3) { (2, 3) } else { (3, 2) };
        assert_eq!(take(high, (3, 1), work("a", "m3", 1)), Ok(()));
        assert_eq!(reason(take(low, (3, 7), None)), "stale_plan");
        assert_eq!(take(low, (4, 1), None), Ok(()));
        assert_eq!(seen.borrow_and_update().as_ref().and_then(|order| order.work.clone()), None);
    }
}
