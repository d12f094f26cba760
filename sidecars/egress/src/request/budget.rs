//! Reserves the tokens of an allowed request, before any byte of it is sent ([`crate::lease`]).
//!
//! ```text
//! method, host, path ─► endpoint ─┬─ metered ─► body, decoded ─► one reading ─► cost ─► reservation
//!                                 ├─ free ────────────────────────────────────────────► sent
//!                                 └─ unknown ─► limited by a budget? ─► denied, or sent
//! ```
//! For the budget decision, the proxy parses the body once, independently of the scans of the route. If a budget limits
//! the host, the proxy denies a request whose body cannot be parsed.

use std::sync::Arc;

use bottle_meter::MeteredRequest;
use bottle_policy::decide::{Reason, Refusal};
use bottle_protocol::endpoints::{self, Endpoint};
use bottle_protocol::session::lease::BudgetKey;
use bottle_protocol::usage::Api;
use http::HeaderMap;
use http::header::CONTENT_TYPE;

use super::exact::{self, Counter};
use super::head::RequestHead;
use super::outbound::Cleared;
use super::permit::Permit;
use crate::egress::Egress;
use crate::inspect::{Coding, MAX_REWRITTEN, request_codings};
use crate::lease::{self, Charge};
use crate::report::record::RequestInfo;

/// Reserves the tokens that the request can use, and waits until a lease has enough tokens. If a budget limits the
/// host, denies a request that could use tokens which the proxy cannot count. Returns the request. Its body may have
/// been buffered by this call.
///
/// # Errors
/// The denial.
pub(super) async fn charge(
    egress: &Arc<Egress>,
    permit: &Permit<'_>,
    head: &RequestHead,
    cleared: Cleared,
) -> Result<(Cleared, Charge), Refusal> {
    let (info, upgrade) = (&permit.info, head.websocket());
    let host = permit.host();
    let endpoint = match upgrade {
        true => Endpoint::of_websocket(host, &info.path),
        false => Endpoint::of(&info.method, host, &info.path),
    };
    let key = || lease::key(permit.route.provider, &egress.reporter.redact(host));
    match endpoint {
        // The proxy reserves tokens for the messages of the WebSocket, not for its upgrade request.
        Endpoint::Metered(_) if upgrade => Ok((cleared, Charge::default())),
        Endpoint::Metered(api) => charge_request(egress, permit, head, api, key(), cleared).await,
        Endpoint::Unknown if could_use_tokens(egress, permit, upgrade) => {
            let limited = is_limited(egress, key()).await.map_err(|denied| denied.refusal(host))?;
            let passes = || egress.model_rules.unmetered.iter().any(|rule| rule.allows(host, &info.path));
            if limited && !passes() {
                let path = egress.reporter.redact(&info.path);
                let method = egress.reporter.redact(&info.method);
                return Err(Refusal::unknown_endpoint(host, &method, &path, upgrade));
            }
            Ok((cleared, Charge::default()))
        }
        Endpoint::Free | Endpoint::Unknown => Ok((cleared, Charge::default())),
    }
}

/// Whether a request to an unknown endpoint could use tokens: if the host serves models, or if the path is like that of
/// a metered endpoint.
fn could_use_tokens(egress: &Egress, permit: &Permit<'_>, upgrade: bool) -> bool {
    let (host, path) = (permit.host(), permit.info.path.as_str());
    permit.route.provider
        || endpoints::serves_models(host)
        || egress.budgeted_hosts.iter().any(|budgeted| budgeted == host)
        || (permit.info.method != "GET" && endpoints::resembles_metered(path))
        || (upgrade && (endpoints::resembles_metered(path) || path.ends_with("/realtime")))
}

/// Whether a budget limits the key. Waits for the keeper's answer if the limit is unknown.
async fn is_limited(egress: &Arc<Egress>, key: BudgetKey) -> Result<bool, lease::LeaseDenied> {
    Ok(egress.leases.reserve(key, 0).await?.is_some())
}

async fn charge_request(
    egress: &Arc<Egress>,
    permit: &Permit<'_>,
    head: &RequestHead,
    api: Api,
    key: BudgetKey,
    mut cleared: Cleared,
) -> Result<(Cleared, Charge), Refusal> {
    let (info, host) = (&permit.info, permit.host());
    let denied = |denied: lease::LeaseDenied| denied.refusal(host);
    if !cleared.is_read() {
        // If no budget limits the host, the proxy streams a body that the route does not scan.
        if egress.repeats.is_unlimited() && !is_limited(egress, key.clone()).await.map_err(denied)? {
            return Ok((cleared, Charge::default()));
        }
        cleared = cleared.buffer(egress, head.headers()).await.map_err(|error| {
            Refusal::not_metered(host, &format!("a request that cannot be read: {error}"), false)
        })?;
    }
    let read = read(egress, head.headers(), api, &cleared).await;
    let request = match read {
        Ok(request) => request,
        Err(why) => {
            let limited = is_limited(egress, key).await.map_err(denied)?;
            return match limited {
                true => Err(Refusal::not_metered(host, &format!("a request {why}"), false)),
                false => Ok((cleared, Charge::default())),
            };
        }
    };
    let mut cost = egress.leases.cost(host, &request, egress.model_rules.default_output);
    admit(egress, &key, info, &request).await?;
    if request.reference.is_none()
        && let Some(counter) = Counter::of(api, &info.path).filter(|_| egress.model_rules.exact)
        && has_tokens_left(egress, &key, &cost).await.map_err(denied)?
        && let Ok(_turn) = egress.counts.try_acquire()
        && let Some(body) = cleared.decoded().await
        && let Some(prompt) = exact::prompt_tokens(egress, permit, head, counter, &body).await
    {
        cost.prompt = prompt;
    }
    let reservation = egress.leases.reserve(key, cost.tokens()).await.map_err(denied)?;
    Ok((cleared, Charge { cost: Some(cost), reservation }))
}

/// Whether a budget limits the key and has enough tokens left for the response of a request. Waits for the keeper's
/// answer if the limit is unknown or if the lease has too few tokens.
///
/// # Errors
/// [`lease::LeaseDenied`] if too few tokens are left, so that the provider does not count a request that is denied.
async fn has_tokens_left(
    egress: &Arc<Egress>,
    key: &BudgetKey,
    cost: &lease::Cost,
) -> Result<bool, lease::LeaseDenied> {
    // The dropped reservation returns its tokens to the lease. Requests that are counted at the same time therefore do
    // not wait for each other's tokens.
    Ok(egress.leases.reserve(key.clone(), cost.least()).await?.is_some())
}

/// Reserves the tokens of a request that is a WebSocket message.
///
/// # Errors
/// The denial.
pub(super) async fn charge_message(
    egress: &Arc<Egress>,
    info: &RequestInfo,
    provider: bool,
    api: Api,
    text: &[u8],
) -> Result<Charge, Refusal> {
    let host = info.host.as_str();
    let denied = |denied: lease::LeaseDenied| denied.refusal(host);
    let key = lease::key(provider, &egress.reporter.redact(host));
    let request = match egress.leases.read(api, text, !egress.repeats.is_unlimited()) {
        Ok(request) => request,
        Err(why) => {
            return match is_limited(egress, key).await.map_err(denied)? {
                true => Err(Refusal::not_metered(host, &format!("a message that {why}"), false)),
                false => Ok(Charge::default()),
            };
        }
    };
    admit(egress, &key, info, &request).await?;
    let cost = egress.leases.cost(host, &request, egress.model_rules.default_output);
    let reservation = egress.leases.reserve(key, cost.tokens()).await.map_err(denied)?;
    Ok(Charge { cost: Some(cost), reservation })
}

/// If a budget limits the host, denies a WebSocket message because it is unknown whether the message uses tokens.
///
/// # Errors
/// The denial.
pub(super) async fn deny_unknown_message(
    egress: &Arc<Egress>,
    info: &RequestInfo,
    provider: bool,
) -> Result<(), Refusal> {
    let host = info.host.as_str();
    let key = lease::key(provider, &egress.reporter.redact(host));
    match is_limited(egress, key).await.map_err(|denied| denied.refusal(host))? {
        true => Err(Refusal::not_metered(
            host,
            "a message that is no plain `response.create`, `response.cancel` or `response.processed`",
            false,
        )),
        false => Ok(()),
    }
}

/// Denies a request that is sent too often in a row. If a budget limits the host, also denies a request for a
/// background response, because this response arrives in another exchange.
async fn admit(
    egress: &Arc<Egress>,
    key: &BudgetKey,
    info: &RequestInfo,
    request: &MeteredRequest,
) -> Result<(), Refusal> {
    let host = info.host.as_str();
    if let Some(fingerprint) = request.fingerprint
        && let Some(limit) = egress.repeats.exceeded(key, &info.path, fingerprint)
    {
        let times = if limit == 1 { "once".to_owned() } else { format!("{limit} times") };
        return Err(Refusal::later(
            Reason::RequestRepeated,
            host,
            &format!("`metering.repeats` allows it {times}"),
        ));
    }
    if request.background && is_limited(egress, key.clone()).await.map_err(|denied| denied.refusal(host))? {
        return Err(Refusal::not_metered(host, "a background response", false));
    }
    Ok(())
}

/// Parses the body of a request. The error message completes the phrase "a request ...".
async fn read(
    egress: &Egress,
    headers: &HeaderMap,
    api: Api,
    cleared: &Cleared,
) -> Result<MeteredRequest, String> {
    check_headers(headers)?;
    // The permit limits the memory for bodies that are copied in order to decode them.
    let _turn = egress.readings.acquire().await.map_err(|_| "while the proxy closes".to_owned())?;
    let too_long = || format!("whose body has more than {} MiB, or cannot be decoded", MAX_REWRITTEN >> 20);
    let body = cleared.decoded().await.ok_or_else(too_long)?;
    egress.leases.read(api, &body, !egress.repeats.is_unlimited()).map_err(|why| format!("whose body {why}"))
}

/// Checks the headers, so that the provider reads the same text as the proxy.
fn check_headers(headers: &HeaderMap) -> Result<(), &'static str> {
    let coding = "with a content coding that the proxy cannot read";
    let codings = request_codings(headers).map_err(|_| coding)?;
    if codings.contains(&Coding::AwsChunked) {
        return Err(coding);
    }
    let mut kinds = headers.get_all(CONTENT_TYPE).iter();
    let Some(kind) = kinds.next() else { return Ok(()) };
    let kind = kind.to_str().unwrap_or_default().to_ascii_lowercase();
    let mut parts = kind.split(';').map(str::trim);
    let media = parts.next().unwrap_or_default();
    let is_json =
        media == "application/json" || media.starts_with("application/") && media.ends_with("+json");
    let charset = parts.filter_map(|part| part.strip_prefix("charset="));
    let is_utf8 =
        charset.into_iter().all(|name| matches!(name.trim_matches('"'), "utf-8" | "utf8" | "us-ascii"));
    match is_json && is_utf8 && kinds.next().is_none() {
        true => Ok(()),
        false => Err("whose `Content-Type` is not JSON in UTF-8"),
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn reads_only_what_the_provider_reads_in_the_same_way() {
        for (headers, is_read) in [
            (&[][..], true),
            (&[("content-type", "application/json")], true),
            (&[("content-type", "application/JSON; charset=UTF-8")], true),
            (&[("content-type", "application/json"), ("content-encoding", "zstd, gzip")], true),
            (&[("content-type", "application/x-www-form-urlencoded")], false),
            (&[("content-type", "multipart/form-data; boundary=x")], false),
            (&[("content-type", "application/json; charset=utf-16")], false),
            (&[("content-type", "application/json"), ("content-type", "text/plain")], false),
            (&[("content-encoding", "compress")], false),
            (&[("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD")], false),
        ] {
            let headers: HeaderMap = headers
                .iter()
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
                .collect::<Vec<_>>()
                .into_iter()
                .fold(HeaderMap::new(), |mut all, (name, value)| {
                    all.append(name, value);
                    all
                });
            assert_eq!(check_headers(&headers).is_ok(), is_read, "{headers:?}");
        }
    }
}
