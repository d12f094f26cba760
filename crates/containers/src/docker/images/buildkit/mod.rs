//! Builds an image with the BuildKit that every supported engine contains. This module is used for Dockerfiles that
//! need BuildKit, and for builds with secrets.
//!
//! ```text
//! POST /build?version=2&session=ID ─ the context as tar ─► engine ─ lines of JSON: progress, the image's id
//! POST /session, upgraded to h2c ◄─ calls for logins and secrets ─ engine
//! ```
//! This module builds the HTTP requests itself. The client library decodes BuildKit's progress only with its feature
//! `buildkit`, and that feature takes secrets only from files or variables of this process.

mod messages;
mod session;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bottle_backend::{BackendError, ProgressSink, Step};
use bottle_protocol::session::guest::SecretText;
use bytes::Bytes;
use http::Request;
use http::header::{CONTENT_TYPE, HOST};
use http_body_util::{BodyExt, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use prost::Message as _;
use serde::Deserialize;
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use url::form_urlencoded;

use self::messages::Progress;
use self::session::Session;
use super::build_request::{BuildRequest, LONG_TIMEOUT};
use super::dockerfile::Labelled;
use super::output::Output;
use super::recipe::Recipe;
use super::upload::Unread;
use crate::docker::engine::EngineError;

/// The maximum length of a line of the engine's answer in bytes.
const LINE_MAX: usize = 16 << 20;
/// The maximum length of the engine's error message in bytes.
const ERROR_MAX: usize = 64 << 10;
/// The time limit for opening the session.
const SESSION_DEADLINE: Duration = Duration::from_secs(60);
/// The prefix of the names of Dockerfile steps. Other steps unpack the context or export the image.
const STEP: &str = "[";
/// The prefix of the names of steps that prepare the Dockerfile steps.
const INTERNAL: &str = "[internal]";

/// A line of the engine's answer.
#[derive(Debug, Deserialize)]
struct Line {
    id: Option<String>,
    aux: Option<serde_json::Value>,
    stream: Option<String>,
    error: Option<String>,
}

/// Builds an image and returns its id. `secrets` contains the secrets that the Dockerfile can mount, by id.
///
/// # Errors
/// [`BackendError`] with the cause and the builder's output.
pub(super) async fn build(
    socket: &Path,
    recipe: Recipe,
    request: &BuildRequest<'_>,
    secrets: BTreeMap<String, SecretText>,
    progress: &ProgressSink<Step>,
) -> Result<String, BackendError> {
    let mut build = Build {
        request,
        progress,
        dockerfile: Labelled::unchanged(&recipe.dockerfile),
        unread: Unread::default(),
        output: Output::default(),
        shown: BTreeSet::new(),
    };
    let session = Session { secrets, logins: request.logins.clone() };
    // Dropping the tasks closes the connections to the engine, and the engine then stops the build.
    let mut tasks = JoinSet::new();
    let built = build.run(socket, recipe, session, &mut tasks);
    let built = tokio::time::timeout(LONG_TIMEOUT, built).await.unwrap_or(Err(EngineError::TimedOut));
    built.map_err(|error| build.failure(&error))
}

struct Build<'a> {
    request: &'a BuildRequest<'a>,
    progress: &'a ProgressSink<Step>,
    dockerfile: Labelled,
    unread: Unread,
    output: Output,
    /// The digests of the steps whose start was already reported.
    shown: BTreeSet<String>,
}

impl Build<'_> {
    async fn run(
        &mut self,
        socket: &Path,
        recipe: Recipe,
        session: Session,
        tasks: &mut JoinSet<()>,
    ) -> Result<String, EngineError> {
        let id = hex::encode(rand::random::<[u8; 16]>());
        let opened = tokio::time::timeout(SESSION_DEADLINE, session.open(socket, &id, tasks)).await;
        opened.map_err(|_| EngineError::TimedOut)?.map_err(|error| lost(&error))?;
        let answer = self.post(socket, &id, recipe, tasks).await?;
        self.read(answer).await
    }

    /// Sends the build request with the context.
    async fn post(
        &self,
        socket: &Path,
        session: &str,
        recipe: Recipe,
        tasks: &mut JoinSet<()>,
    ) -> Result<Incoming, EngineError> {
        let stream = UnixStream::connect(socket).await.map_err(|error| lost(&error))?;
        let connected = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = connected.map_err(|error| lost(&error))?;
        tasks.spawn(async move {
            let _ = connection.await;
        });
        let name = match (&recipe.directory, self.request.path.and_then(Path::file_name)) {
            (Some(_), Some(name)) => name.to_string_lossy().into_owned(),
            _ => "Dockerfile".to_owned(),
        };
        let path = format!("/build?{}", self.query(session, &name, &recipe.args));
        let dockerfile = Bytes::from(recipe.dockerfile.clone());
        let archive = self.unread.stream(move |out| recipe.pack(out, &[(&name, dockerfile)]));
        let frames = futures_util::TryStreamExt::map_ok(archive, Frame::data);
        let request = Request::post(path)
            .header(HOST, "docker")
            .header(CONTENT_TYPE, "application/x-tar")
            .body(StreamBody::new(Box::pin(frames)))
            .map_err(|error| lost(&error))?;
        let response = sender.send_request(request).await.map_err(|error| lost(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response.into_body());
        }
        let message = Limited::new(response.into_body(), ERROR_MAX).collect().await;
        let message = message.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let parsed = serde_json::from_slice::<serde_json::Value>(&message).ok();
        let parsed = parsed.and_then(|value| value["message"].as_str().map(str::to_owned));
        let message = parsed.unwrap_or_else(|| String::from_utf8_lossy(&message).into_owned());
        Err(EngineError::Refused { status: status.as_u16(), message })
    }

    fn query(&self, session: &str, dockerfile: &str, args: &BTreeMap<String, String>) -> String {
        let request = self.request;
        let args: BTreeMap<&String, &String> =
            request.proxies.iter().map(|(name, value)| (name, value)).chain(args).collect();
        let labels: BTreeMap<&String, &String> =
            request.labels.iter().map(|(name, value)| (name, value)).collect();
        let mut query = form_urlencoded::Serializer::new(String::new());
        query
            .append_pair("version", "2")
            .append_pair("session", session)
            .append_pair("dockerfile", dockerfile)
            .append_pair("rm", "1")
            .append_pair("buildargs", &serde_json::json!(args).to_string())
            .append_pair("labels", &serde_json::json!(labels).to_string());
        if request.no_cache {
            query.append_pair("nocache", "1");
        }
        if let Some(tag) = &request.tag {
            query.append_pair("t", tag);
        }
        query.finish()
    }

    /// Reads the engine's answer, reports the progress, and returns the image's id.
    async fn read(&mut self, mut answer: Incoming) -> Result<String, EngineError> {
        let (mut buffer, mut id) = (Vec::new(), None);
        while let Some(frame) = answer.frame().await {
            let frame = frame.map_err(|error| lost(&error))?;
            buffer.extend_from_slice(frame.data_ref().map(AsRef::as_ref).unwrap_or_default());
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                id = self.line(&line)?.or(id);
            }
            if buffer.len() > LINE_MAX {
                return Err(EngineError::Disconnected("its answer has a line that is too long".to_owned()));
            }
        }
        id = self.line(&buffer)?.or(id);
        id.ok_or_else(|| EngineError::Disconnected("the build ended without a result".to_owned()))
    }

    /// Reads one line of the answer. Returns the image's id if the line contains the id.
    fn line(&mut self, line: &[u8]) -> Result<Option<String>, EngineError> {
        if line.trim_ascii().is_empty() {
            return Ok(None);
        }
        let line: Line = serde_json::from_slice(line)
            .map_err(|error| EngineError::Disconnected(format!("its answer is no JSON: {error}")))?;
        if let Some(message) = line.error {
            return Err(EngineError::Refused { status: 500, message });
        }
        if let Some(text) = line.stream {
            self.take(&text);
        }
        let aux = line.aux.unwrap_or_default();
        match line.id.as_deref() {
            Some("moby.buildkit.trace") => {
                let decoded = aux.as_str().and_then(|text| STANDARD.decode(text).ok());
                if let Some(report) = decoded.and_then(|bytes| Progress::decode(&*bytes).ok()) {
                    self.report(report);
                }
                Ok(None)
            }
            _ => Ok(aux["ID"].as_str().map(str::to_owned)),
        }
    }

    fn report(&mut self, report: Progress) {
        for vertex in report.vertexes {
            let begins = vertex.started.is_some() || vertex.cached;
            let of_dockerfile = vertex.name.starts_with(STEP) && !vertex.name.starts_with(INTERNAL);
            if begins && of_dockerfile && self.shown.insert(vertex.digest) {
                let cached = if vertex.cached { " (from the cache)" } else { "" };
                let (progress, subject) = (self.progress, self.request.name);
                self.output.take_stage(&format!("{}{cached}", vertex.name), &|step| {
                    progress.report(Step { subject: subject.to_owned(), ..step });
                });
            }
        }
        for log in report.logs {
            self.take(&String::from_utf8_lossy(&log.msg));
        }
    }

    fn take(&mut self, text: &str) {
        let (progress, subject) = (self.progress, self.request.name);
        self.output.take(text, &|step| progress.report(Step { subject: subject.to_owned(), ..step }));
    }

    fn failure(&mut self, cause: &EngineError) -> BackendError {
        match self.unread.take() {
            Some(why) => {
                BackendError::failed(format!("cannot read the files for {}: {why}", self.request.name))
            }
            None => self.output.failure(self.request, &self.dockerfile, cause),
        }
    }
}

/// Creates the error for a failed connection to the engine. The error contains the innermost cause, which is the most
/// specific.
fn lost(error: &dyn std::error::Error) -> EngineError {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    EngineError::Disconnected(cause.to_string())
}
