//! Implements the MCP server with the official SDK. The server runs the tools, and waits for the user's decisions.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bottle_policy::lock_out;
use bottle_policy::route::display_value;
use bottle_protocol::queue::{Answer, Id, Scope, Status, Tool};
use bottle_protocol::session::tools::{ToolAnswer, ToolRequest};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Implementation,
    ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ServerCapabilities, ServerConfig,
    Tool as Described,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::http::RESPONSE_WITHIN;
use crate::keeper_tools::KeeperTools;
use crate::proposals::{Proposals, Proposed};
use crate::tools::{self, BadCall, Call};

/// The time limit for a decision if the client requests progress notifications. When the limit is reached, the call
/// returns `pending`.
const WAIT_WITH_PROGRESS: Duration = Duration::from_secs(300);

/// The interval between two progress notifications.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// The time limit for a call of a keeper's tool if the client requests progress notifications. The keeper itself has
/// shorter limits for most calls.
const CALL_WITH_PROGRESS: Duration = Duration::from_secs(1900);

/// The time limit for a call of a keeper's tool if the client does not request progress notifications. This limit is
/// shorter than the HTTP server's time limit for a response.
const CALL_WITHOUT_PROGRESS: Duration = RESPONSE_WITHIN.saturating_sub(Duration::from_secs(5));

const INSTRUCTIONS: &str = "This sandbox reaches only the hosts on its list. When a request is denied with 403, \
                            or you know that you will need a host, propose a route here. The user decides, and \
                            approved routes work at once, without a restart.";

/// The MCP server for one request.
#[derive(Clone)]
pub(crate) struct Server {
    proposals: Arc<Proposals>,
    /// The time limit for a decision if the client does not request progress notifications. When the limit is reached,
    /// the call returns `pending`.
    call_timeout: Duration,
    /// The tools of the keeper. `None` if the bottle may not start other bottles.
    keeper_tools: Option<Arc<KeeperTools>>,
}

impl Server {
    pub(crate) fn new(
        proposals: Arc<Proposals>,
        call_timeout: Duration,
        keeper_tools: Option<Arc<KeeperTools>>,
    ) -> Self {
        Self { proposals, call_timeout, keeper_tools }
    }

    /// Returns the descriptions of the keeper's tools. Returns an empty list if the bottle may not start other bottles,
    /// or if the bottle is locked.
    async fn list_keeper_tools(&self) -> Vec<Described> {
        let Some(keeper) = self.keeper_tools.as_ref().filter(|_| !self.proposals.is_locked()) else {
            return Vec::new();
        };
        let described = |tool: &Value| serde_json::from_value(tool.clone()).ok();
        keeper.list().await.iter().filter_map(described).collect()
    }

    /// Calls a tool of the keeper. Sends progress notifications if the client requested them.
    async fn call_keeper(
        &self,
        keeper: &KeeperTools,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, Mistake> {
        if self.proposals.is_locked() {
            return Err(Mistake(lock_out::SENTENCE.to_owned()));
        }
        let (tool, arguments) = (request.name.into_owned(), request.arguments.unwrap_or_default());
        let is_notified = context.meta.get_progress_token().is_some();
        let within = if is_notified { CALL_WITH_PROGRESS } else { CALL_WITHOUT_PROGRESS };
        let late = || {
            let seconds = within.as_secs();
            Mistake(format!(
                "the call took longer than {seconds} seconds and was cancelled; request progress notifications for \
                 long calls, or start the command with process_start"
            ))
        };
        let answer = tokio::select! {
            answer = tokio::time::timeout(within, keeper.ask(ToolRequest::Call { tool, arguments })) => {
                answer.map_err(|_| late())?
            }
            () = context.ct.cancelled() => return Err(Mistake("the call was cancelled".to_owned())),
            never = notify(context, "the call is running") => match never {},
        };
        match answer {
            ToolAnswer::Document { document } => Ok(CallToolResult::structured(document)),
            ToolAnswer::Text { text } => Ok(CallToolResult::success(vec![ContentBlock::text(text)])),
            ToolAnswer::Mistake { sentence } => Err(Mistake(sentence)),
            ToolAnswer::Tools { .. } => Err(Mistake("bottle gave another answer than a result".to_owned())),
        }
    }

    fn routes(&self) -> Value {
        let current = self.proposals.current();
        let routes: Vec<Value> = current.table.routes().iter().map(display_value).collect();
        json!({"revision": current.revision, "routes": routes})
    }

    /// Creates a proposal, and returns its id. If all proposed routes are already allowed, returns the result of the
    /// call instead.
    fn propose(&self, tool: Tool, call: &Proposing) -> Result<Result<Id, Value>, Mistake> {
        let Proposing { proposal, why, revision } = call;
        match self.proposals.propose(tool, proposal, why.clone(), *revision) {
            Ok(Proposed::Pending(id)) => Ok(Ok(id)),
            Ok(Proposed::AlreadyAllowed) => {
                let revision = self.proposals.current().revision;
                let message = "all of it is allowed already; make your request";
                Ok(Err(json!({"status": "approved", "revision": revision, "message": message})))
            }
            Err(error) => Err(Mistake(error.to_string())),
        }
    }

    /// Runs a call of one of the daemon's own tools. Returns the content of the call's result.
    async fn run(&self, call: Call, context: &RequestContext<RoleServer>) -> Result<Value, Mistake> {
        match call {
            _ if self.proposals.is_locked() => {
                Ok(json!({"status": "refused", "message": lock_out::SENTENCE}))
            }
            Call::List => Ok(self.routes()),
            Call::Check(id) => self.decision(&id, context).await,
            Call::Propose { tool, proposal, why, revision } => {
                match self.propose(tool, &Proposing { proposal, why, revision })? {
                    Ok(id) => self.decision(&id, context).await,
                    Err(result) => Ok(result),
                }
            }
        }
    }

    /// Waits for the user's decision on a proposal. In the meantime, sends progress notifications if the client
    /// requested them.
    async fn decision(&self, id: &Id, context: &RequestContext<RoleServer>) -> Result<Value, Mistake> {
        let unknown = || Mistake(format!("unknown proposal {id}, or its decision is too old"));
        let mut answer = self.proposals.answer(id).ok_or_else(unknown)?;
        let is_notified = context.meta.get_progress_token().is_some();
        let within = if is_notified { WAIT_WITH_PROGRESS } else { self.call_timeout };
        let message = format!("proposal {id} waits for the user's decision");
        tokio::select! {
            decided = tokio::time::timeout(within, decided(&mut answer)) => {
                Ok(self.result(id, decided.ok().as_ref()))
            }
            () = context.ct.cancelled() => Ok(self.result(id, None)),
            never = notify(context, &message) => match never {},
        }
    }

    /// Returns the tool's result for the answer to a proposal. `None` means that the proposal is pending.
    fn result(&self, id: &Id, answer: Option<&Answer>) -> Value {
        let revision = self.proposals.current().revision;
        match answer {
            None => json!({
                "status": "pending",
                "id": id,
                "message": "the user has not decided yet; continue with other work and check again with check-proposal",
            }),
            Some(Answer::Expired) => json!({
                "status": "expired",
                "id": id,
                "message": "the user did not decide in time; propose it again if you still need it",
            }),
            Some(Answer::Refused(why)) => json!({"status": "refused", "id": id, "message": why}),
            Some(Answer::Decided(response)) => {
                let once = response.scope == Scope::Once;
                let (status, message) = match response.status {
                    Status::Approved if once => {
                        ("approved", "only the next request that needs the routes passes; make it")
                    }
                    Status::Approved => ("approved", "the routes are live; make your request"),
                    Status::Modified if once => {
                        ("modified", "the user allowed `routes` instead, for the next request only")
                    }
                    Status::Modified => ("modified", "the user allowed `routes` instead, and they are live"),
                    Status::Rejected => ("rejected", "the user rejected it; continue without it"),
                };
                let mut result = json!({"status": status, "id": id, "message": message});
                if once {
                    result["scope"] = json!(response.scope);
                }
                if response.status != Status::Rejected {
                    result["revision"] = revision.into();
                }
                if let Some(notes) = &response.notes {
                    result["notes"] = notes.as_str().into();
                }
                if let Some(routes) = &response.final_file {
                    result["routes"] = routes.as_str().into();
                }
                result
            }
        }
    }
}

/// Sends progress notifications if the client requested them. Never returns.
async fn notify(context: &RequestContext<RoleServer>, message: &str) -> Infallible {
    if let Some(token) = context.meta.get_progress_token() {
        for count in 0_u32.. {
            let progress = ProgressNotificationParam::new(token.clone(), f64::from(count))
                .with_message(message.to_owned());
            if context.peer.notify_progress(progress).await.is_err() {
                // An error means that the client has disconnected. In that case, the SDK cancels this call.
                break;
            }
            tokio::time::sleep(PROGRESS_INTERVAL).await;
        }
    }
    std::future::pending().await
}

/// A sentence that describes the mistake in a call to the agent, so that the agent can correct the call. The call's
/// result has `isError: true` and contains this sentence. A JSON-RPC error is not used, because many clients do not
/// forward it to the model (Model Context Protocol 2025-11-25, "Tools", "Error Handling").
struct Mistake(String);

fn mistake(sentence: String) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(sentence)])
}

/// The arguments of a call that proposes routes.
struct Proposing {
    proposal: bottle_policy::proposal::Proposal,
    why: String,
    revision: Option<u64>,
}

async fn decided(answer: &mut watch::Receiver<Option<Answer>>) -> Answer {
    match answer.wait_for(Option::is_some).await {
        Ok(answer) => answer.clone().unwrap_or(Answer::Expired),
        Err(_) => Answer::Refused("the daemon is stopping".to_owned()),
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("bottle-supervise", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let mut tools = tools::all();
        tools.extend(self.list_keeper_tools().await);
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if let Some(keeper) = self.keeper_tools.as_deref().filter(|_| !tools::is_own(&request.name)) {
            let result = self.call_keeper(keeper, request, &context).await;
            return Ok(result.unwrap_or_else(|Mistake(sentence)| mistake(sentence)).into());
        }
        let result = match Call::parse(&request.name, request.arguments) {
            Err(error @ BadCall::Unknown(_)) => {
                return Err(ErrorData::invalid_params(error.to_string(), None));
            }
            Err(error) => Err(Mistake(error.to_string())),
            Ok(call) => self.run(call, &context).await,
        };
        let result = match result {
            Ok(result) => CallToolResult::structured(result),
            Err(Mistake(sentence)) => mistake(sentence),
        };
        Ok(result.into())
    }
}
