"""Every check and every rule that throws a candidate out: worlds in which it is silent, and what it says in others."""

from tests.unit.plan.checks.table_account import ACCOUNT, MONEY, NETWORK
from tests.unit.plan.checks.table_data import DATA
from tests.unit.plan.checks.table_hardware import HARDWARE, MARKET
from tests.unit.plan.checks.table_hosts import HOSTS
from tests.unit.plan.checks.table_images import IMAGES
from tests.unit.plan.checks.table_launch import ENVIRONMENT, LAUNCH
from tests.unit.plan.checks.table_rules import RULES
from tests.unit.plan.checks.table_software import SOFTWARE
from tests.unit.plan.checks.table_storage import STORAGE

TABLE = (
    *HARDWARE,
    *MARKET,
    *MONEY,
    *NETWORK,
    *ACCOUNT,
    *DATA,
    *ENVIRONMENT,
    *LAUNCH,
    *IMAGES,
    *RULES,
    *SOFTWARE,
    *STORAGE,
    *HOSTS,
)
