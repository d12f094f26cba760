//! Reserves the tokens of an allowed request, before any byte of it is sent ([`crate::gate`]).

use std::sync::Arc;

use bottle_contract::decide::{Reason, Refusal};
use bottle_contract::usage::Api;
use http::header::CONTENT_ENCODING;

use super::exact;
use super::head::RequestHead;
use super::outbound::Cleared;
use super::permit::Permit;
use crate::egress::Egress;
use crate::gate::{self, Charge, Cost, RequestBodyText};
use crate::report::record::RequestInfo;

/// Reserves the tokens that the request can use, and waits until a lease has them. `api` is that of a request whose
/// response the proxy counts. Other requests are denied if they use tokens and a budget limits the host.
///
/// # Errors
/// The denial.
pub(super) async fn charge(
    egress: &Arc<Egress>,
    permit: &Permit<'_>,
    head: &RequestHead,
    api: Option<Api>,
    cleared: &Cleared,
) -> Result<Charge, Refusal> {
    let (info, upgrade, provider) = (&permit.info, head.websocket(), permit.route.provider);
    let host = permit.host();
    let uncounted =
        |body: &[u8]| gate::unmetered_kind(&info.method, host, &info.path, upgrade, provider, body);
    let key = || gate::key(provider, &egress.reporter.redact(host));
    let Some(api) = api else {
        let Some(kind) = uncounted(&[]) else { return Ok(Charge::default()) };
        let limited = egress.gate.reserve(key(), 0).await.map_err(|denied| denied.refusal(host))?;
        return match limited {
            Some(_) => Err(Refusal::not_metered(host, kind, upgrade)),
            None => Ok(Charge::default()),
        };
    };
    let body = cleared.text(head.headers().contains_key(CONTENT_ENCODING)).await;
    let default_output = egress.model_rules.default_output;
    let mut cost = match uncounted(body.text()) {
        Some(kind) => Err(kind),
        None => egress.gate.cost(api, &body, default_output).ok_or("a request without an announced length"),
    };
    let key = key();
    if let Some(limit) = egress.repeats.exceeded(&key, &info.path, body.text()) {
        return Err(repeated(host, limit));
    }
    if let Ok(cost) = &mut cost
        && egress.model_rules.exact
        && egress.gate.is_limited(&key)
        && let Some(prompt) = exact::prompt_tokens(egress, permit, head, api, body.text()).await
    {
        cost.prompt = prompt;
    }
    let tokens = cost.as_ref().map_or(0, Cost::tokens);
    let reservation = egress.gate.reserve(key, tokens).await.map_err(|denied| denied.refusal(host))?;
    match (cost, reservation) {
        (Ok(cost), reservation) => Ok(Charge { cost: Some(cost), reservation }),
        (Err(kind), Some(_)) => Err(Refusal::not_metered(host, kind, upgrade)),
        (Err(_), None) => Ok(Charge::default()),
    }
}

/// Reserves the tokens of a request in a message of a WebSocket. `context` is the number of tokens that the model
/// remembers of the conversation and reads again.
///
/// # Errors
/// The denial.
pub(super) async fn charge_message(
    egress: &Arc<Egress>,
    info: &RequestInfo,
    provider: bool,
    api: Api,
    text: &[u8],
    context: u64,
) -> Result<Charge, Refusal> {
    let host = info.host.as_str();
    let uncounted = gate::unmetered_kind("POST", host, &info.path, false, provider, text);
    let key = gate::key(provider, &egress.reporter.redact(host));
    if let Some(limit) = egress.repeats.exceeded(&key, &info.path, text) {
        return Err(repeated(host, limit));
    }
    let body = RequestBodyText::Text(text.to_vec());
    let cost = egress.gate.cost(api, &body, egress.model_rules.default_output);
    let tokens = cost.map_or(0, |cost| cost.tokens().saturating_add(context));
    let reservation = egress.gate.reserve(key, tokens).await.map_err(|denied| denied.refusal(host))?;
    match (uncounted, reservation) {
        (Some(kind), Some(_)) => Err(Refusal::not_metered(host, kind, false)),
        // The text is only the new part of the prompt, so it says nothing about the bytes per token of the model.
        (_, reservation) => Ok(Charge { cost: None, reservation }),
    }
}

fn repeated(host: &str, limit: u32) -> Refusal {
    let times = if limit == 1 { "once".to_owned() } else { format!("{limit} times") };
    Refusal::later(Reason::RequestRepeated, host, &format!("`gate.repeats` allows it {times}"))
}
