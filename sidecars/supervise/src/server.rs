//! The protocol, by the official SDK: what each call does, and how long it waits.

use std::sync::Arc;
use std::time::Duration;

use bottle_contract::lock_out;
use bottle_contract::queue::{Answer, Id, Scope, Status, Tool};
use bottle_contract::route::display_value;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ErrorData, Implementation, ListToolsResult,
    PaginatedRequestParams, ProgressNotificationParam, ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::proposals::{Proposals, Proposed};
use crate::tools::{self, Call};

/// How long a call waits for a user where the client wants to hear how it goes.
const WAITS_AND_TELLS: Duration = Duration::from_secs(300);

/// How often it hears.
const TELLS: Duration = Duration::from_secs(10);

const INSTRUCTIONS: &str = "This sandbox reaches only the hosts on its list. When a request is refused with 403, \
                            or you know that you will need a host, ask for it here: a user decides, and what is \
                            approved works at once, without a restart.";

/// One request's server.
pub(crate) struct Server {
    proposals: Arc<Proposals>,
    /// How long a call waits for a user.
    waits: Duration,
}

impl Server {
    pub(crate) fn new(proposals: Arc<Proposals>, waits: Duration) -> Self {
        Self { proposals, waits }
    }

    fn routes(&self) -> Value {
        let current = self.proposals.current();
        let routes: Vec<Value> = current.table.routes().iter().map(display_value).collect();
        json!({"revision": current.revision, "routes": routes})
    }

    fn propose(&self, tool: Tool, call: &Proposing) -> Result<Result<Id, Value>, ErrorData> {
        let Proposing { proposal, why, revision } = call;
        match self.proposals.propose(tool, proposal, why.clone(), *revision) {
            Ok(Proposed::Waits(id)) => Ok(Ok(id)),
            Ok(Proposed::Nothing) => {
                let revision = self.proposals.current().revision;
                let message = "all of it is allowed already; make your request";
                Ok(Err(json!({"status": "approved", "revision": revision, "message": message})))
            }
            Err(error) => Err(ErrorData::invalid_params(error.to_string(), None)),
        }
    }

    /// Waits for a decision, and tells how it goes to who wants to hear.
    async fn decision(&self, id: &Id, context: &RequestContext<RoleServer>) -> Result<Value, ErrorData> {
        let unknown = || {
            ErrorData::invalid_params(format!("there is no proposal {id}, or it was decided long ago"), None)
        };
        let mut answer = self.proposals.answer(id).ok_or_else(unknown)?;
        let token = context.meta.get_progress_token();
        let within = if token.is_some() { WAITS_AND_TELLS } else { self.waits };
        let tell = async {
            let Some(token) = token else { return std::future::pending().await };
            let mut told = 0.0;
            loop {
                let message = format!("proposal {id} waits for a user");
                let progress = ProgressNotificationParam::new(token.clone(), told).with_message(message);
                if context.peer.notify_progress(progress).await.is_err() {
                    // Nobody listens any more; the call ends by itself.
                    return std::future::pending().await;
                }
                tokio::time::sleep(TELLS).await;
                told += 1.0;
            }
        };
        tokio::select! {
            decided = tokio::time::timeout(within, decided(&mut answer)) => {
                Ok(self.words(id, decided.ok().as_ref()))
            }
            () = context.ct.cancelled() => Ok(self.words(id, None)),
            never = tell => never,
        }
    }

    /// An answer, or that there is none yet, as the agent is told of it.
    fn words(&self, id: &Id, answer: Option<&Answer>) -> Value {
        let revision = self.proposals.current().revision;
        match answer {
            None => json!({
                "status": "pending",
                "id": id,
                "message": "nobody has decided yet; go on with something else and ask again with check-proposal",
            }),
            Some(Answer::Expired) => json!({
                "status": "expired",
                "id": id,
                "message": "nobody decided in time; ask anew if you still need it",
            }),
            Some(Answer::Refused(why)) => json!({"status": "refused", "id": id, "message": why}),
            Some(Answer::Decided(response)) => {
                let once = response.scope == Scope::Once;
                let (status, message) = match response.status {
                    Status::Approved if once => {
                        ("approved", "the next request that needs the routes passes, and no other; make it")
                    }
                    Status::Approved => ("approved", "the routes are live; make your request"),
                    Status::Modified if once => {
                        ("modified", "the user allowed `routes` instead, for the next request and no other")
                    }
                    Status::Modified => ("modified", "the user allowed `routes` instead, and they are live"),
                    Status::Rejected => ("rejected", "the user said no; do without it"),
                };
                let mut said = json!({"status": status, "id": id, "message": message});
                if once {
                    said["scope"] = json!(response.scope);
                }
                if response.status != Status::Rejected {
                    said["revision"] = revision.into();
                }
                if let Some(notes) = &response.notes {
                    said["notes"] = notes.as_str().into();
                }
                if let Some(routes) = &response.final_file {
                    said["routes"] = routes.as_str().into();
                }
                said
            }
        }
    }
}

/// The arguments of a proposal.
struct Proposing {
    proposal: bottle_contract::proposal::Proposal,
    why: String,
    revision: Option<u64>,
}

async fn decided(answer: &mut watch::Receiver<Option<Answer>>) -> Answer {
    match answer.wait_for(Option::is_some).await {
        Ok(answer) => answer.clone().unwrap_or(Answer::Expired),
        Err(_) => Answer::Refused("nobody can be asked any more".to_owned()),
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
        Ok(ListToolsResult::with_all_items(tools::all()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let call = Call::read(&request.name, request.arguments)
            .map_err(|error| ErrorData::invalid_params(error.to_string(), None))?;
        let said = match call {
            _ if self.proposals.is_locked() => json!({"status": "refused", "message": lock_out::SENTENCE}),
            Call::List => self.routes(),
            Call::Check(id) => self.decision(&id, &context).await?,
            Call::Propose { tool, proposal, why, revision } => {
                match self.propose(tool, &Proposing { proposal, why, revision })? {
                    Ok(id) => self.decision(&id, &context).await?,
                    Err(said) => said,
                }
            }
        };
        Ok(CallToolResult::structured(said).into())
    }
}
