//! Reads a request's body: bounded, decoded, and with room reserved before a byte is held.
//!
//! Memory for bodies is bounded by `bodies_bytes_max` whatever clients do. Room is taken as bytes arrive, so that
//! somebody who announces much and sends little takes little.

use super::{
    encoding::{codings, decode},
    error::ApiError,
};
use crate::{
    config::Settings,
    defaults::{BODY_ROOM_WITHIN, RETRY_AFTER},
    forward::App,
};
use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, StatusCode, header},
};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use std::sync::Arc;
use tokio::{sync::OwnedSemaphorePermit, time::timeout};

/// Room that every body starts with.
const STEP_BYTES: usize = 64 * 1024;
/// No useful text shrinks further than this; what would is a bomb, and waits for more room.
const DECODED_RATIO_MAX: usize = 1_000;

/// The whole body, decoded, and its room.
pub(super) async fn read(
    app: &App,
    settings: &Settings,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Bytes, Option<OwnedSemaphorePermit>), ApiError> {
    let limit = settings.body_bytes_max;
    let codings = codings(headers)?;
    let declared = headers.get(header::CONTENT_LENGTH).map(parse_length).transpose()?;
    if declared.is_some_and(|length| length > limit) {
        return Err(too_large(limit));
    }
    let mut room = reserve(app, STEP_BYTES.min(declared.unwrap_or(STEP_BYTES))).await?;
    let mut bytes = collect(app, settings, body, declared.unwrap_or(0), &mut room).await?;
    // Applied in the order of the header, so undone from its end.
    for coding in codings.into_iter().rev() {
        // It may become as large as it is allowed to, for the moment of decoding.
        let _extra = reserve(app, limit.min(bytes.len().saturating_mul(DECODED_RATIO_MAX))).await?;
        bytes = app.aside.run(move || decode(coding, &bytes, limit)).await?;
        grow(app, &mut room, bytes.len()).await?;
    }
    let spare = room.num_permits().saturating_sub(kib(bytes.len()));
    drop(room.split(spare));
    Ok((bytes, Some(room)))
}

/// Makes `room` large enough for `bytes`.
async fn grow(app: &App, room: &mut OwnedSemaphorePermit, bytes: usize) -> Result<(), ApiError> {
    let missing = kib(bytes).saturating_sub(room.num_permits());
    if missing > 0 {
        room.merge(reserve(app, missing * 1024).await?);
    }
    Ok(())
}

async fn reserve(app: &App, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
    let wanted = u32::try_from(kib(bytes)).unwrap_or(u32::MAX);
    let room = timeout(BODY_ROOM_WITHIN, Arc::clone(&app.body_room).acquire_many_owned(wanted)).await;
    room.ok().and_then(Result::ok).ok_or_else(|| {
        let message = "Too many large requests are being worked on. Try again shortly.";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", message).retry_after(RETRY_AFTER).close()
    })
}

fn kib(bytes: usize) -> usize {
    bytes.div_ceil(1024).max(1)
}

async fn collect(
    app: &App,
    settings: &Settings,
    mut body: Body,
    declared: usize,
    room: &mut OwnedSemaphorePermit,
) -> Result<Bytes, ApiError> {
    let (limit, stall_max) = (settings.body_bytes_max, settings.body_stall_max);
    let mut held = BytesMut::with_capacity(declared.min(STEP_BYTES));
    loop {
        let frame = timeout(stall_max, body.frame()).await.map_err(|_| {
            let message = format!("No more of the request's body came for {stall_max:?}.");
            ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_stalled", message).close()
        })?;
        match frame {
            None => return Ok(held.freeze()),
            Some(Err(_)) => {
                return Err(ApiError::bad_request("body_broke_off", "The request's body broke off.").close());
            }
            Some(Ok(frame)) => {
                let Ok(data) = frame.into_data() else { continue };
                if held.len() + data.len() > limit {
                    return Err(too_large(limit));
                }
                if held.len() + data.len() > room.num_permits() * 1024 {
                    // Twice as much each time, so that large bodies are not moved about too often.
                    let next = declared.max((held.len() + data.len()).saturating_mul(2)).min(limit);
                    grow(app, room, next).await?;
                    held.reserve(next - held.len());
                }
                held.extend_from_slice(&data);
            }
        }
    }
}

fn parse_length(value: &HeaderValue) -> Result<usize, ApiError> {
    let length = value.to_str().ok().and_then(|text| text.parse().ok());
    length.ok_or_else(|| ApiError::bad_request("invalid_length", "Content-Length is not a number.").close())
}

pub(super) fn too_large(limit: usize) -> ApiError {
    let message = format!("The request's body is larger than {limit} bytes, the limit of this service.");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message).close()
}
