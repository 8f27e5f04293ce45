"""Every plan check and candidate rule, with passing inputs and failing inputs and their expected findings."""

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
