//! Finds the page for a request, carries out actions, and sends the live parts of pages.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bottle_host::Host;
use bottle_host::budget::parse_tokens;
use bottle_keeper::ledger::GroupBy;
use bottle_lib::failure::Failure;
use bottle_lib::proposals::answer::canonical_routes;
use bottle_lib::proposals::review::{self, Answered, Choice, Review};
use bottle_policy::names::Slug;
use bottle_protocol::queue::{Id, MAX_TEXT};
use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, LOCATION, REFERRER_POLICY, SET_COOKIE,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use jiff::Timestamp;
use maud::{Markup, html};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

use super::access::{Access, Entry, Refusal};
use super::assets::{SCRIPT, STYLE};
use super::form::{Form, query};
use super::pages::{self, Message, Page, Tab};
use crate::console::error::CliError;
use crate::console::loopback;
use crate::console::runtime::block_on;
use bottle_lib::dashboard::action::{Action, actions_for};
use bottle_lib::dashboard::gather::{Gathered, Gatherer, INTERVAL, Wanted};
use bottle_lib::dashboard::model::{Filter, GROUPINGS, Group, Meter, Period};

/// The body of a response.
type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The maximum size of a form, in bytes.
const MAX_FORM: usize = 16 << 10;

/// The maximum size of a form that contains routes, in bytes. A form encodes a byte in at most three bytes.
const MAX_ROUTES_FORM: usize = 3 * MAX_TEXT + MAX_FORM;

/// The time limit for a browser to send a form.
const FORM_WITHIN: Duration = Duration::from_secs(10);

/// The maximum number of pages that are kept up to date at the same time.
const MAX_STREAMS: usize = 24;

/// The maximum number of action results that are stored for the next page.
const MAX_MESSAGES: usize = 32;

/// The interval at which a live part sends a ping, so that the server detects a closed browser.
const PING: Duration = Duration::from_secs(15);

/// A page may load only the style sheet and the script of this server, and no other page may frame it.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The headers of every response.
const HEADERS: [(HeaderName, &str); 7] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (CACHE_CONTROL, "no-store"),
    // Without a referrer, browsers would send `Origin: null` with a form.
    (REFERRER_POLICY, "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// The dashboard of one home.
pub(super) struct Site {
    host: Host,
    access: Access,
    /// The results of actions, with their numbers.
    messages: Mutex<(u64, VecDeque<(u64, Message)>)>,
    streams: Arc<Semaphore>,
}

/// The reply to a request, before it becomes a response.
enum Reply {
    Page(StatusCode, Markup),
    /// A redirect to this address below the directory of all pages.
    Next(String),
}

impl loopback::Site for Site {
    type Body = Body;

    async fn respond(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let mut response = self.answer(request).await;
        for (name, value) in HEADERS {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

impl Site {
    pub(super) fn new(host: Host, access: Access) -> Arc<Self> {
        let streams = Arc::new(Semaphore::new(MAX_STREAMS));
        Arc::new(Self { host, access, messages: Mutex::default(), streams })
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let path = match self.access.check(&parts) {
            Err(refusal) => return refused(refusal),
            Ok(Entry::Asset) => return asset(parts.uri.path()),
            Ok(Entry::Opened) => {
                let mut response = document(StatusCode::OK, &pages::opened(self.access.directory()));
                if let Ok(cookie) = HeaderValue::from_str(&self.access.set_cookie()) {
                    response.headers_mut().insert(SET_COOKIE, cookie);
                }
                return response;
            }
            Ok(Entry::Page(path)) => path,
        };
        let address = Form::parse(parts.uri.query().unwrap_or_default().as_bytes());
        if path == "events" {
            return self.events(address);
        }
        let form = if parts.method == Method::POST {
            let read = Limited::new(body, max_form(&path)).collect();
            let Ok(Ok(body)) = tokio::time::timeout(FORM_WITHIN, read).await else {
                return refused(Refusal::BadToken);
            };
            let form = Form::parse(&body.to_bytes());
            if let Err(refusal) = self.access.check_token(form.get("token")) {
                return refused(refusal);
            }
            Some(form)
        } else {
            None
        };
        let site = Arc::clone(&self);
        let reply = spawn_blocking(move || match form {
            None => site.show(&path, &address),
            Some(form) => site.act(&path, &form),
        });
        match reply.await {
            Ok(Reply::Page(status, markup)) => document(status, &markup),
            Ok(Reply::Next(address)) => {
                let mut response = Response::new(Full::new(Bytes::new()).boxed_unsync());
                *response.status_mut() = StatusCode::SEE_OTHER;
                let address = format!("{}{address}", self.access.directory());
                if let Ok(address) = HeaderValue::from_str(&address) {
                    response.headers_mut().insert(LOCATION, address);
                }
                response
            }
            Err(_) => document(
                StatusCode::INTERNAL_SERVER_ERROR,
                &pages::notice_page("The page cannot be shown", "The dashboard failed.", "Try again.", None),
            ),
        }
    }

    // Methods that return pages.

    fn show(&self, path: &str, address: &Form) -> Reply {
        let parts: Vec<&str> = path.split('/').collect();
        match parts[..] {
            [""] | ["usage"] | ["proposals"] | ["bottles", _] => self.live_page(path, address),
            ["bottles", slug, "raise"] => self.raise(slug, address, None),
            ["bottles", slug, what] if ACTIONS.contains(&what) => self.confirm(slug, what),
            ["proposals", id] => self.proposal(id, address),
            ["proposals", id, "edit"] => self.edit(id, None),
            ["proposals", id, what @ ("approve" | "reject")] => self.answer_page(id, what == "approve"),
            _ => self.not_found("There is no such page", "Its address may be of another version."),
        }
    }

    fn gather(&self, wanted: &Wanted) -> Gathered {
        Live::new(self.host.clone()).gather(wanted)
    }

    fn page(&self, status: StatusCode, page: &Page<'_>, waiting: u32) -> Reply {
        Reply::Page(status, page.render(self.access.directory(), waiting))
    }

    fn live_page(&self, path: &str, address: &Form) -> Reply {
        let Some(wanted) = View::parse(path, address) else {
            return self.not_found("There is no such page", "Its address may be of another version.");
        };
        let directory = self.access.directory();
        let gathered = self.gather(&wanted.wanted());
        let Some(live) = wanted.markup(&self.host, &gathered, directory) else {
            return self.not_found("This bottle is gone", "It has ended, or it was discarded.");
        };
        let fixed = match &wanted {
            View::Usage(by, period) => html! {
                h1 { "Usage" }
                (pages::usage_choices(*by, *period, directory))
            },
            View::Bottles(filter) => html! {
                h1 { "Bottles" }
                @if !gathered.snapshot.bottles.is_empty() || !filter.is_empty() {
                    (pages::filter_form(filter, directory))
                }
            },
            View::Proposals => html! { h1 { "Proposals" } },
            View::Bottle(slug) => html! { h1 { (slug) } },
        };
        let message = self.message(address);
        let page = Page {
            title: wanted.title(),
            tab: wanted.tab(),
            fixed,
            live: Some((live, format!("events?{}", wanted.query()))),
            message: message.as_ref(),
        };
        self.page(StatusCode::OK, &page, gathered.snapshot.proposals)
    }

    fn not_found(&self, title: &str, why: &str) -> Reply {
        let back = Some(self.access.directory());
        let page = pages::notice_page(title, why, "Go back to the list.", back);
        Reply::Page(StatusCode::NOT_FOUND, page)
    }

    fn confirm(&self, slug: &str, what: &str) -> Reply {
        let Some(action) = self.action(slug, what) else {
            return self.not_found("This cannot be done now", "The bottle has another state, or is gone.");
        };
        let base = format!("{}bottles/{slug}", self.access.directory());
        let form = pages::confirm(&action, slug, &format!("{base}/{what}"), &base, self.access.token());
        self.fixed(StatusCode::OK, Tab::Bottles, action.question(), &form)
    }

    fn fixed(&self, status: StatusCode, tab: Tab, title: String, form: &Markup) -> Reply {
        let fixed = html! { h1 { (crate::console::output::one_line(&title)) } (form) };
        let waiting = self.gather(&Wanted::default()).snapshot.proposals;
        self.page(status, &Page { title, tab, fixed, live: None, message: None }, waiting)
    }

    /// Returns the action on a bottle, if the state of the bottle allows the action.
    fn action(&self, slug: &str, what: &str) -> Option<Action> {
        let slug: Slug = slug.parse().ok()?;
        let gathered = self.gather(&Wanted::default());
        let bottle = gathered.snapshot.bottles.into_iter().find(|bottle| bottle.slug == slug)?;
        actions_for(&bottle).into_iter().find(|action| action.name() == what)
    }

    /// Returns the budget of a bottle that the fields of a form or an address name.
    fn meter(&self, slug: &str, form: &Form) -> Option<Meter> {
        let gathered = self.gather(&Wanted::default());
        let bottle = gathered.snapshot.bottles.into_iter().find(|bottle| bottle.slug.as_str() == slug)?;
        let is_named = |meter: &Meter| {
            let declared = &meter.declared;
            form.get("scope") == Some(&declared.scope.to_string())
                && form.get("provider") == Some(&declared.limit.key)
                && form.get("window") == Some(declared.limit.window.name())
        };
        bottle.meters.into_iter().find(is_named)
    }

    /// Returns the page that asks by how much to raise a budget. If the address contains a number of tokens, returns the
    /// page that asks to confirm the resulting limit.
    fn raise(&self, slug: &str, form: &Form, error: Option<&str>) -> Reply {
        let Some(meter) = self.meter(slug, form) else {
            return self.not_found("There is no such budget", "It does not govern the bottle any more.");
        };
        let (base, token) = (format!("{}bottles/{slug}", self.access.directory()), self.access.token());
        let path = format!("{base}/raise");
        let typed = form.get("tokens").unwrap_or_default();
        let tokens = Some(typed).filter(|typed| !typed.is_empty()).map(parse_tokens).transpose();
        let (status, page) = match (error, tokens) {
            (None, Ok(Some(tokens))) => {
                (StatusCode::OK, pages::confirm_raise(&meter, tokens, &path, &base, token))
            }
            (None, Ok(None)) => (StatusCode::OK, pages::raise(&meter, &path, &base, "", None)),
            (Some(error), _) => {
                (StatusCode::UNPROCESSABLE_ENTITY, pages::raise(&meter, &path, &base, typed, Some(error)))
            }
            (None, Err(why)) => {
                let error = format!("The number of tokens {why}.");
                (StatusCode::UNPROCESSABLE_ENTITY, pages::raise(&meter, &path, &base, typed, Some(&error)))
            }
        };
        let title = format!("Raise {}", bottle_lib::dashboard::words::budget(&meter.declared));
        self.fixed(status, Tab::Bottles, title, &page)
    }

    fn review(&self, id: &str, choice: &Choice) -> Result<Review, Reply> {
        let gone = || {
            self.not_found(
                "This proposal no longer waits",
                "Another process answered it, or the agent withdrew it.",
            )
        };
        let id: Id = id.parse().map_err(|_| gone())?;
        match review::find(&self.host, &id, choice, Timestamp::now()) {
            Ok(Some(review)) => Ok(review),
            Ok(None) => Err(gone()),
            Err(error) => Err(self.not_found("The queue cannot be read", &error.message)),
        }
    }

    fn proposal(&self, id: &str, address: &Form) -> Reply {
        let review = match self.review(id, &Choice::default()) {
            Ok(review) => review,
            Err(reply) => return reply,
        };
        let message = self.message(address);
        let title = review.listed.title.clone();
        let fixed = html! {
            h1 { (crate::console::output::one_line(&title)) }
            (pages::proposal(&review, self.access.directory()))
        };
        let page = Page { title, tab: Tab::Proposals, fixed, live: None, message: message.as_ref() };
        let waiting = self.gather(&Wanted::default()).snapshot.proposals;
        self.page(StatusCode::OK, &page, waiting)
    }

    fn answer_page(&self, id: &str, approves: bool) -> Reply {
        let choice = Choice::default();
        match self.review(id, &choice) {
            Ok(review) => self.ask_for_answer(&review, approves, &choice, None),
            Err(reply) => reply,
        }
    }

    /// Returns the page that asks for an answer. If `message` is set, it says why nothing was answered yet.
    fn ask_for_answer(
        &self,
        review: &Review,
        approves: bool,
        choice: &Choice,
        message: Option<&str>,
    ) -> Reply {
        let verb = match (approves, review.listed.waits) {
            (true, _) => "Approve",
            (false, true) => "Reject",
            (false, false) => "Dismiss",
        };
        let title = format!("{verb}: {}", review.listed.title);
        let (directory, token) = (self.access.directory(), self.access.token());
        let form = pages::answer(review, approves, choice, message, directory, token);
        let status = if message.is_some() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
        self.fixed(status, Tab::Proposals, title, &form)
    }

    /// Returns the page on which the user edits the proposed routes. `failed` is the text that the user wrote before,
    /// and why it cannot be applied.
    fn edit(&self, id: &str, failed: Option<(&str, &str)>) -> Reply {
        let review = match self.review(id, &Choice::default()) {
            Ok(review) => review,
            Err(reply) => return reply,
        };
        let Some(routes) = review.routes.as_deref().filter(|_| review.listed.waits) else {
            return self.not_found("This cannot be edited", "The proposal has no valid routes to edit.");
        };
        let (text, error) = failed.map_or((routes, None), |(text, why)| (text, Some(why)));
        let form = pages::edit(&review, text, error, self.access.directory(), self.access.token());
        let status = if error.is_some() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
        self.fixed(status, Tab::Proposals, format!("Edit: {}", review.listed.title), &form)
    }

    // Methods that carry out actions.

    fn act(&self, path: &str, form: &Form) -> Reply {
        let parts: Vec<&str> = path.split('/').collect();
        match parts[..] {
            ["bottles", slug, "raise"] => self.act_raise(slug, form),
            ["bottles", slug, what] if ACTIONS.contains(&what) => match self.action(slug, what) {
                Some(action) => self.carry_out(slug, &action),
                None => {
                    self.not_found("This cannot be done now", "The bottle has another state, or is gone.")
                }
            },
            ["proposals", id, "edit"] => self.act_edit(id, form),
            ["proposals", id, "approve"] => self.act_approve(id, form),
            ["proposals", id, "reject"] => {
                let reason = form.get("reason").unwrap_or_default().to_owned();
                self.act_answer(id, form, review::Answer::Reject { reason })
            }
            _ => self.not_found("There is no such page", "Nothing was done."),
        }
    }

    fn act_raise(&self, slug: &str, form: &Form) -> Reply {
        let Some(meter) = self.meter(slug, form) else {
            return self.not_found("There is no such budget", "It does not govern the bottle any more.");
        };
        let limit = meter.standing.limit;
        if form.get("limit") != Some(&limit.to_string()) {
            let why = "The limit changed meanwhile. Nothing was done: look at it again.";
            return self.raise(slug, form, Some(why));
        }
        match parse_tokens(form.get("tokens").unwrap_or_default()) {
            Ok(tokens) => {
                let Meter { declared, run, .. } = meter;
                self.carry_out(slug, &Action::Raise { declared, run, tokens, limit })
            }
            Err(why) => self.raise(slug, form, Some(&format!("The number of tokens {why}."))),
        }
    }

    fn carry_out(&self, slug: &str, action: &Action) -> Reply {
        let done = block_on(async { Ok(action.carry_out(&self.host).await?) });
        let done = self.remember(done.map(|words| Answered { words, unsaved: None }));
        let is_there = self.gather(&Wanted::default()).snapshot.bottles;
        let is_there = is_there.iter().any(|bottle| bottle.slug.as_str() == slug);
        let page = if is_there { format!("bottles/{slug}") } else { String::new() };
        Reply::Next(format!("{page}?{done}"))
    }

    /// Shows the effect of the routes that the user wrote, and asks for the approval.
    fn act_edit(&self, id: &str, form: &Form) -> Reply {
        let text = form.text("routes").unwrap_or_default();
        let routes = match check_routes(&text) {
            Ok(routes) => routes,
            Err(why) => return self.edit(id, Some((&text, &why))),
        };
        let choice = Choice { routes: Some(routes), ..Choice::default() };
        match self.review(id, &choice) {
            Ok(review) => self.ask_for_answer(&review, true, &choice, None),
            Err(reply) => reply,
        }
    }

    /// Approves a proposal if the user saw the effect of this choice. Otherwise shows the effect, and asks again.
    fn act_approve(&self, id: &str, form: &Form) -> Reply {
        let routes = form.text("routes").map(|text| check_routes(&text)).transpose();
        let scope = form.get("scope").unwrap_or("run").parse();
        let (Ok(routes), Ok(scope)) = (routes, scope) else {
            return self.not_found("There is no such answer", "Nothing was done.");
        };
        let choice = Choice { routes, scope };
        let review = match self.review(id, &choice) {
            Ok(review) => review,
            Err(reply) => return reply,
        };
        if form.get("digest") != Some(&review.digest) {
            let why = "Nothing was answered yet. This is the effect of your choice, or the proposal changed \
                       meanwhile: read it, and then approve it.";
            return self.ask_for_answer(&review, true, &choice, Some(why));
        }
        let reason = form.get("reason").map(str::to_owned);
        self.act_answer(id, form, review::Answer::Approve { reason, choice })
    }

    fn act_answer(&self, id: &str, form: &Form, answer: review::Answer) -> Reply {
        let Ok(id) = id.parse::<Id>() else {
            return self.not_found("There is no such proposal", "Nothing was done.");
        };
        let digest = form.get("digest").unwrap_or_default();
        let result = block_on(async { Ok(review::answer(&self.host, &id, digest, answer).await?) });
        let page = if result.is_ok() { "proposals".to_owned() } else { format!("proposals/{id}") };
        let done = self.remember(result);
        Reply::Next(format!("{page}?{done}"))
    }

    /// Stores the result of an action for the next page. Returns the address field that refers to this result.
    fn remember(&self, result: Result<Answered, CliError>) -> String {
        let message = match result {
            Ok(Answered { words, unsaved }) => Message { words, unsaved, is_error: false },
            Err(CliError { failure: Failure { message, hint, .. }, .. }) => {
                let hint = hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
                Message { words: format!("{message}{hint}"), unsaved: None, is_error: true }
            }
        };
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, kept) = &mut *messages;
        *number += 1;
        kept.push_back((*number, message));
        let excess = kept.len().saturating_sub(MAX_MESSAGES);
        kept.drain(..excess);
        query(&[("done", &number.to_string())])
    }

    fn message(&self, address: &Form) -> Option<Message> {
        let number: u64 = address.get("done")?.parse().ok()?;
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.1.iter().find(|(known, _)| *known == number).map(|(_, message)| message.clone())
    }

    // Methods that send events.

    /// Sends the live part of a page whenever it changes.
    fn events(self: Arc<Self>, address: Form) -> Response<Body> {
        let page = address.get("page").unwrap_or_default().to_owned();
        let view = View::parse(&page, &address);
        let permit = Arc::clone(&self.streams).try_acquire_owned();
        let (Some(view), Ok(permit)) = (view, permit) else {
            let page =
                pages::notice_page("Too many pages", "Close some of them.", "Then reload this one.", None);
            return document(StatusCode::SERVICE_UNAVAILABLE, &page);
        };
        let stream = Stream {
            directory: self.access.directory().to_owned(),
            view,
            live: Some(Live::new(self.host.clone())),
            host: self.host.clone(),
            last: None,
            sent: Instant::now(),
            pause: Duration::ZERO,
            _permit: permit,
        };
        let frames = futures_util::stream::unfold(stream, |mut stream| async move {
            let text = stream.next().await?;
            Some((Ok::<_, Infallible>(Frame::data(Bytes::from(text))), stream))
        });
        let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        response
    }
}

/// The actions on a bottle, by their names in a URL.
const ACTIONS: [&str; 7] = ["stop", "discard", "pause", "cutoff", "freeze", "kill", "continue"];

/// Returns the maximum size of a form at this path.
fn max_form(path: &str) -> usize {
    let has_routes =
        path.starts_with("proposals/") && (path.ends_with("/edit") || path.ends_with("/approve"));
    if has_routes { MAX_ROUTES_FORM } else { MAX_FORM }
}

/// Returns routes that the user wrote in their canonical form, or why they cannot be applied.
fn check_routes(text: &str) -> Result<String, String> {
    if text.len() > MAX_TEXT {
        return Err(format!("it is longer than {MAX_TEXT} bytes"));
    }
    canonical_routes(text).map_err(|why| why.to_string())
}

/// A view with a live part.
#[derive(Debug, Clone, PartialEq, Eq)]
enum View {
    Bottles(Filter),
    Bottle(Slug),
    Usage(GroupBy, Period),
    Proposals,
}

impl View {
    fn parse(path: &str, address: &Form) -> Option<Self> {
        match path {
            "" => {
                let named = |name: &str| Group::ALL.into_iter().find(|group| group.name() == name);
                let group = address.get("show").and_then(named);
                Some(Self::Bottles(Filter::new(address.get("q").unwrap_or_default(), group)))
            }
            "proposals" => Some(Self::Proposals),
            "usage" => {
                let by = address.get("by").unwrap_or("day");
                let by = GROUPINGS.iter().find(|(_, name)| *name == by)?.0;
                let period = address.get("period").unwrap_or(Period::default().name());
                let period = Period::ALL.into_iter().find(|known| known.name() == period)?;
                Some(Self::Usage(by, period))
            }
            path => path.strip_prefix("bottles/")?.parse().ok().map(Self::Bottle),
        }
    }

    /// Returns the query fields from which [`View::parse`] restores the view. The field `page` contains the path.
    fn query(&self) -> String {
        match self {
            Self::Bottles(filter) => {
                let fields = std::iter::once(("page", "")).chain(pages::filter_query(filter));
                query(&fields.collect::<Vec<_>>())
            }
            Self::Proposals => query(&[("page", "proposals")]),
            Self::Bottle(slug) => query(&[("page", &format!("bottles/{slug}"))]),
            Self::Usage(by, period) => {
                let by = bottle_lib::dashboard::model::grouping_name(*by);
                query(&[("page", "usage"), ("by", by), ("period", period.name())])
            }
        }
    }

    fn wanted(&self) -> Wanted {
        match self {
            Self::Bottle(slug) => Wanted { detail: Some(slug.clone()), usage: None },
            Self::Usage(by, period) => Wanted { detail: None, usage: Some((*by, *period)) },
            Self::Bottles(_) | Self::Proposals => Wanted::default(),
        }
    }

    fn title(&self) -> String {
        match self {
            Self::Bottles(_) => "Bottles".to_owned(),
            Self::Bottle(slug) => slug.to_string(),
            Self::Usage(..) => "Usage".to_owned(),
            Self::Proposals => "Proposals".to_owned(),
        }
    }

    fn tab(&self) -> Tab {
        match self {
            Self::Bottles(_) | Self::Bottle(_) => Tab::Bottles,
            Self::Usage(..) => Tab::Usage,
            Self::Proposals => Tab::Proposals,
        }
    }

    /// Returns the live part of the page. Returns `None` if the bottle no longer exists.
    fn markup(&self, host: &Host, gathered: &Gathered, directory: &str) -> Option<Markup> {
        let Gathered { snapshot, detail, usage } = gathered;
        Some(match self {
            Self::Bottles(filter) => pages::bottles(snapshot, filter, directory),
            Self::Usage(..) => pages::usage(usage.as_ref(), snapshot),
            Self::Bottle(slug) => {
                let bottle = snapshot.bottles.iter().find(|bottle| bottle.slug == *slug)?;
                pages::bottle(bottle, detail.as_ref(), snapshot, directory)
            }
            Self::Proposals => match review::list(host, Timestamp::now()) {
                Ok((listed, skipped)) => pages::proposals(&listed, &skipped, directory),
                Err(error) => pages::proposals(&[], &[error.message], directory),
            },
        })
    }
}

/// Gathers data, including the latest usage of the bottles.
struct Live(Gatherer);

impl Live {
    fn new(host: Host) -> Self {
        Self(Gatherer::new(host))
    }

    fn gather(&mut self, wanted: &Wanted) -> Gathered {
        let failed = self.0.ingest().err();
        let mut gathered = self.0.gather(wanted);
        if let Some(error) = failed
            && !gathered.snapshot.problems.contains(&error.message)
        {
            gathered.snapshot.problems.push(error.message);
        }
        gathered
    }
}

/// The events of one page.
struct Stream {
    host: Host,
    directory: String,
    view: View,
    /// The source of the data. `None` while a thread gathers data with it.
    live: Option<Live>,
    last: Option<(String, u32)>,
    sent: Instant,
    pause: Duration,
    _permit: OwnedSemaphorePermit,
}

impl Stream {
    /// Waits for a change of the page, and returns it as a server-sent event. Returns `None` after a failure.
    async fn next(&mut self) -> Option<String> {
        loop {
            tokio::time::sleep(self.pause).await;
            let start = Instant::now();
            let (view, host, directory) = (self.view.clone(), self.host.clone(), self.directory.clone());
            let mut live = self.live.take()?;
            let gathered = spawn_blocking(move || {
                let gathered = live.gather(&view.wanted());
                let markup = view.markup(&host, &gathered, &directory);
                (live, markup.map(Markup::into_string), gathered.snapshot.proposals)
            });
            let (live, markup, proposals) = gathered.await.ok()?;
            self.live = Some(live);
            self.pause = INTERVAL.max(start.elapsed() * 4);
            let gone = || html! { p.message { "This bottle is gone." } }.into_string();
            let now = (markup.unwrap_or_else(gone), proposals);
            if self.last.as_ref() != Some(&now) {
                let text = format!("{}{}", event("count", &proposals.to_string()), event("page", &now.0));
                self.last = Some(now);
                self.sent = Instant::now();
                return Some(text);
            }
            if self.sent.elapsed() > PING {
                self.sent = Instant::now();
                return Some(":\n\n".to_owned());
            }
        }
    }
}

/// Formats a server-sent event.
fn event(name: &str, data: &str) -> String {
    let lines: String = data.lines().map(|line| format!("data: {line}\n")).collect();
    format!("event: {name}\n{lines}\n")
}

fn document(status: StatusCode, markup: &Markup) -> Response<Body> {
    bytes(status, "text/html; charset=utf-8", Bytes::from(markup.0.clone()))
}

fn asset(path: &str) -> Response<Body> {
    match path {
        STYLE => bytes(
            StatusCode::OK,
            "text/css; charset=utf-8",
            Bytes::from_static(include_bytes!("assets/style.css")),
        ),
        SCRIPT => bytes(
            StatusCode::OK,
            "text/javascript; charset=utf-8",
            Bytes::from_static(include_bytes!("assets/script.js")),
        ),
        _ => refused(Refusal::NoCookie),
    }
}

fn refused(refusal: Refusal) -> Response<Body> {
    let status = match refusal {
        Refusal::WrongHost => StatusCode::MISDIRECTED_REQUEST,
        Refusal::UsedLink => StatusCode::GONE,
        Refusal::Prefetch => StatusCode::SERVICE_UNAVAILABLE,
        Refusal::NoCookie | Refusal::OtherSite | Refusal::BadToken => StatusCode::FORBIDDEN,
        Refusal::BadMethod => StatusCode::METHOD_NOT_ALLOWED,
    };
    document(status, &pages::refused(refusal))
}

fn bytes(status: StatusCode, kind: &'static str, content: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(content).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
