//! `adopt`: a guarded resource is given to another lease.

use super::tokens::overtaken;
use super::{operate, token};
use crate::args::{Adopt as Args, Common};
use crate::exit::Exit;
use crate::{guards, output};
use leasehold::guard::HighWater;
use leasehold::{Error, Kind, Result, Why};
use serde_json::{Value, json};

pub async fn adopt(common: &Common, args: &Args) -> Result<Exit> {
    let token = token(args.token.as_deref())?;
    let why = Why::named("--why", &args.why)?;
    let by = operate::by(args.by.as_deref())?;
    let guard = guards::adoptable(&args.resource, &token.lease)?;
    let resource = guard.resource();
    overtaken(common, &*guard, &token).await?;
    let Some(before) = guard.high_water().await? else {
        let message = format!("resource=`{resource}` has no fence: nothing to adopt, any lease may write there first");
        return Err(Error::new(Kind::Invalid, message));
    };
    let after = guard.adopt(&before, &token, &by, &why).await?;
    if common.json {
        let (by, why) = (by.as_str(), why.as_str());
        let told =
            json!({ "resource": resource, "before": fence(&before), "after": fence(&after), "by": by, "why": why });
        output::json(&told)?;
    } else {
        output::say(&format!("resource=`{resource}` was fenced by {}, and is by {} now", line(&before), line(&after)));
    }
    Ok(Exit::Done)
}

fn line(high: &HighWater) -> String {
    format!("lease `{}` (epoch {}, lineage {})", high.lease, high.epoch, high.lineage)
}

fn fence(high: &HighWater) -> Value {
    json!({ "lease": high.lease.to_string(), "lineage": high.lineage.to_string(), "epoch": high.epoch.get() })
}
