"""What Metaflow finds of Gangline: the decorator `@gang`, and what its runtime starts in place of `step`."""

STEP_DECORATORS_DESC = [("gang", ".gang_decorator.GangDecorator")]
CLIS_DESC = [("gang", ".gang_cli.cli")]
TRAMPOLINE_CLIS_DESC = [("gang", ".gang_cli.cli")]
