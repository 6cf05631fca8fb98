//! Inference requests: read, checked, and handed to [`forward`].

use super::{boxed, error::ApiError, models, read::read};
use crate::{
    account::Account,
    answer,
    client_io::Client,
    forward::{App, ForwardError, forward},
    headers::CLIENT_REQUEST_ID,
    stream::Dialect,
};
use axum::{
    Extension,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, Response},
    response::IntoResponse,
};
use std::sync::Arc;

/// A route of its own.
pub(super) async fn infer(
    State(app): State<Arc<App>>,
    Extension(client): Extension<Client>,
    request: Request,
) -> Response<Body> {
    let _waiting = client.waits();
    let client_id = client_id(request.headers());
    let dialect = Dialect::of(request.uri().path());
    let mut account = Account::new(
        &app,
        request_id().into(),
        client_id.as_ref().and_then(|id| id.to_str().ok()).map(str::to_owned),
        &request,
    );
    app.budget.deposit();
    let mut response = match read(&app, client, request, &mut account).await {
        Ok(inference) => answer_for(&app, &Arc::new(inference), account, dialect).await,
        Err(error) => refuse(error.dialect(dialect), account),
    };
    if let Some(id) = client_id {
        response.headers_mut().insert(CLIENT_REQUEST_ID, id);
    }
    response
}

/// Every route that has no handler: an inference route that engines have, a service's or a node's, or nothing.
pub(super) async fn any(state: State<Arc<App>>, client: Extension<Client>, request: Request) -> Response<Body> {
    // The models of a service are known here; engines are not asked.
    let path = request.uri().path();
    let service = path.strip_prefix("/v1/service/").and_then(|rest| rest.strip_suffix("/v1/models"));
    if let Some(service) = service.filter(|_| matches!(*request.method(), Method::GET | Method::HEAD)) {
        return models::listed(&state, Some(service));
    }
    infer(state, client, request).await
}

async fn answer_for(
    app: &Arc<App>,
    request: &Arc<crate::request::Inference>,
    account: Account,
    dialect: Dialect,
) -> Response<Body> {
    let forwarded = tokio::select! {
        forwarded = forward(request, account) => forwarded,
        () = app.closing.cancelled() => {
            return ApiError::stopping().request(&request.id).dialect(dialect).into_response();
        }
    };
    let (error, account) = match forwarded {
        Ok(response) => return boxed(response),
        Err((ForwardError::Failed(failure), account)) => match ApiError::failed(failure) {
            Ok(refusal) => return boxed(answer::passed_on(refusal, request, account)),
            Err(error) => (error, account),
        },
        Err((ForwardError::NoCandidate(cause), account)) => (ApiError::no_candidate(&cause, &request.wanted), account),
        Err((ForwardError::NoPlace(cause), account)) => (ApiError::no_place(cause), account),
    };
    refuse(error.dialect(dialect), account)
}

fn refuse(error: ApiError, mut account: Account) -> Response<Body> {
    account.refused(error.end(), error.status(), error.code());
    error.request(account.id()).into_response()
}

/// 16 random bytes as hex: unique without asking anybody.
fn request_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// The client's own name for its request, if it can be repeated.
fn client_id(headers: &HeaderMap) -> Option<HeaderValue> {
    const BYTES_MAX: usize = 128;
    let given = headers.get(CLIENT_REQUEST_ID).or_else(|| headers.get(crate::headers::REQUEST_ID))?;
    (given.len() <= BYTES_MAX && given.to_str().is_ok()).then(|| given.clone())
}
